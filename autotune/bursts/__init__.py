"""Bursts: short timed training runs of `build()` workloads, each in a process of its own.

`runner.ProcessRunner` runs points. `hosts` and `turns` are the parent's side, which never imports torch; `jobs` run in
a child. They may import `training` and what lies below it. Start with `runner`.
"""
