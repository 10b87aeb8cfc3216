"""What each sub-command does: a file a command, named like it, that reads options and imports the rest when it runs.

Behind them: `options` (the model from which all options are made), `tuning`, `tuning_result` and `saving`, `checking`,
`crossing`, `fleet_run`; `python_api` is `autotune.tune`, and `mcp_server` and `mcp_tools` serve agents. Nothing is
re-exported: `autotune --help` imports every command, and must not import what they need.
"""
