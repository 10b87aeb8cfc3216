"""Unmodified training scripts: how they run, what is seen in them, and how their bursts become figures.

`autotune.recorder` runs inside the script; this package runs in its parent process, and may import `bursts`. Start with
`isolation`.
"""

from autotune.scripts.isolation import ScriptIsolation
from autotune.scripts.script import Script

__all__ = ["Script", "ScriptIsolation"]
