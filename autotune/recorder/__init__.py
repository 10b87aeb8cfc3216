"""What runs inside a training script that knows nothing of autotune.

It needs torch and the standard library alone: it is loaded by its path into the interpreter of the script, whether
autotune is installed there or not. What it saw and timed goes to the parent in lines of JSON.
"""
