"""Workloads and figures: everything that the README claims is measured by a script in here."""
