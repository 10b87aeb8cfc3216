"""The sub-commands: a file for each, with its options and its exit status.

They import `sessions`, which do the work, inside the function: `autotune --help` imports every command, and must not
import what they need. `common` holds the options that several share. Start with `tune`.
"""
