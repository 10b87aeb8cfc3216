"""The sandbox: the kernel lets a script's processes change only a scratch folder of their own.

Code inside the script's processes (`entry`, `view`, `landlock`, `calls`) needs only the standard library: it is loaded
by its path, whether or not autotune is installed there. `protection` and `supervisor` are the parent's side.
May import shared basics only. Start with `protection`.
"""
