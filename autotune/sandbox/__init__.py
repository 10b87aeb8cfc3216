"""The kernel keeps a script's processes from changing anything but a scratch folder of their own.

What runs inside the script's processes (`entry`, `view`, `landlock`, `calls`) needs the standard library alone: it is
loaded by its path, whether autotune is installed there or not. `protection` and `supervisor` are the parent's side.
"""
