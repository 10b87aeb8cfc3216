"""Terminal output: tables and progress.

`console.make_console` makes the console that prints everything, and `progress.make_progress` shows a running search.
Nothing is re-exported: each command shows one table. May import what lies below `search`. Start with `console`.
"""
