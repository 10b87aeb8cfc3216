"""What a command runs, end to end: one tuning, one check, one comparison with another config, one fleet.

The command line, `autotune.tune` and the MCP server share them. `options` is the model from which all options are
made. Nothing is re-exported: `autotune --help` must not import what a session needs. May import `search`,
`report`, `terminal`, `fleet` and what lies below them. Start with `tuning`.
"""
