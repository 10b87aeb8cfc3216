"""The sub-commands: a file for each, which parses its options and imports the rest when it runs.

They share `options` (the model from which all options are made), `tuning`, `tuning_result` and `saving`, `checking`,
`crossing`, `fleet_run`; `python_api` is `autotune.tune`, and `mcp_server` and `mcp_tools` serve agents. Nothing is
re-exported: `autotune --help` imports every command, and must not import their dependencies.
"""
