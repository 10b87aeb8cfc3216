"""Workloads and figures: everything that the documentation claims is measured by a script in here."""
