"""What is sampled beside a job: memory, processors, the GPU; and whether a GPU waits for the host.

Runs in the job's process. Start with `sampling`.
"""
