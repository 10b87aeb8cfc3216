"""The search: which burst to run next, when to stop, and what to call the best."""
