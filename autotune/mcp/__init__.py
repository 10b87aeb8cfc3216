"""Serves autotune to agents and editors over the Model Context Protocol.

`command` is `autotune mcp`; `server` keeps the running tools, and `tools` makes them from the commands' options.
May import `commands` and what lies below. Start with `server`.
"""
