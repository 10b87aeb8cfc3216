"""Bursts: short timed training runs, each in a process of its own.

The parent's side: `isolation.Isolation` starts processes, and `runner.ProcessRunner` uses them to run points.
The child's side, which imports torch: `forkserver`, `worker`, and a file for each job. `protocol` holds
the messages between them. Nothing is re-exported: neither side may import the other's modules.
"""
