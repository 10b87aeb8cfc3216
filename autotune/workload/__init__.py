"""What is trained: the workload, how a target leads to it, and what names it."""
