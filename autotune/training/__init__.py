"""A config at work, in bursts and in your training alike.

`loading.load` reads a result and compares this machine with the one that was measured; `tuned.Tuned` tells torch what
the config says. Nothing is re-exported: ``autotune.load`` and ``autotune.Tuned`` are the public names, and both import
torch only when they are asked for.
"""
