"""The recorder: code that runs inside a training script, which needs no changes for it.

It needs only torch and the standard library: it is loaded by its path into the script's interpreter, whether or not
autotune is installed there. It reports what it sees and times to the parent as lines of JSON. It may import `timing`,
`torch_settings` and `sandbox`, by relative imports. Start with `arrival`.
"""
