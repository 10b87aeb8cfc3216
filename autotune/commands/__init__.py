"""What each sub-command does: a file a command, named like it, that reads options and imports the rest when it runs.

Behind them: `options` (values and their ranges), `tuning` and `tuning_result`, `checking`, `crossing`. Nothing is
re-exported: `autotune --help` imports every command, and must not import what they need.
"""
