"""Comes first on the path of a script's interpreters, so that Python lets the clock in."""
