"""Players that train in turn, seen from the parent: which one plays, for how long, and what it measured.

May import `hosts`, and no torch. Start with `duet`.
"""
