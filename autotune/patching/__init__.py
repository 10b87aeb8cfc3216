"""Writes a result into a script: as arguments where it makes its loaders and optimizers, else as one line.

`patch` decides and writes; `in_place` finds the calls in the source; `diff` shows the change. May import `scripts`.
Start with `patch`.
"""
