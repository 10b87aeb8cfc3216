"""What a child process does: a file for each job, and what the jobs share. Imports torch.

`forkserver` is the process that forks a child for each job, and `worker` runs a job in it. Start with `host_job`.
"""
