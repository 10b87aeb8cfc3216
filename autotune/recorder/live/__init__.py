"""Tuning inside a training that is real: settings that leave what is learned alone take turns, block by block.

`training` leads, `pools` feeds the training from loaders that may be exchanged within an epoch, and `evidence`
judges, and bounds what all of it may cost. Nothing here imports more than torch and the standard library, for it runs
in the script's own interpreter.
"""
