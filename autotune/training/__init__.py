"""Applies a config, in bursts and in your training alike.

`load_result.load` reads a result and compares this machine with the measured one; `tuned.Tuned` applies the config to
torch. Nothing is re-exported: ``autotune.load`` and ``autotune.Tuned`` are the public names, and both import torch only
on first use. May import `results`, `workload` and what lies below. Start with `tuned`.
"""
