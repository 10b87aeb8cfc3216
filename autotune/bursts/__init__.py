"""Bursts: short timed training runs, each in a process of its own.

The parent's side: `isolation.Isolation` starts processes, `runner.ProcessRunner` turns a point into a burst by them.
The child's side, which imports torch: `forkserver`, `worker`, and a file for each job. `protocol` is what crosses over.
Nothing is re-exported: each side must not import the other's.
"""
