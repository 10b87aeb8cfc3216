"""Bursts: short timed training runs, each in a process of its own."""
