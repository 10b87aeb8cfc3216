"""What a person sees in a terminal: tables (a file each) and progress.

`console.make_console` is where all is printed, `progress.make_progress` shows a search that runs. Nothing is
re-exported: each command shows one table.
"""
