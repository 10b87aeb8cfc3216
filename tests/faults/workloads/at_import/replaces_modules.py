"""A module that replaces what others use: the clock, json, print, and the standard streams."""

import builtins
import json
import sys
import time

from tests.faults.workloads import base

for name in ("perf_counter", "monotonic", "time"):
    setattr(time, name, lambda: 0.0)
time.sleep = lambda _: None
json.dumps = lambda value, **_: b"{}"
builtins.print = None
sys.stdin = sys.stdout = sys.stderr = None
build = base.healthy
