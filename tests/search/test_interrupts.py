"""Ctrl-C, by real signals."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.processes import heed_signals

INTERRUPTED = """
import contextlib
from autotune.search.interrupts import Interrupts

with Interrupts() as interrupts, interrupts.held() if {held} else contextlib.nullcontext():
    interrupts.pass_on_to(lambda: print("asked", flush=True))
    print("ready", flush=True)
    input()
print("ended in order")
"""


@pytest.mark.parametrize(
    ("held", "status", "out", "told"),
    [(False, 130, "", "interrupted twice: ended at once"), (True, 0, "ended in order", "")],
)
def test_a_second_signal_ends_the_process_unless_signals_are_held(held: bool, status: int, out: str, told: str) -> None:
    """It says so; while a result is written, both are only recorded."""
    command = [sys.executable, "-c", INTERRUPTED.format(held=held)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed_signals) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        if not held:  # two signals at once may arrive as one
            assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        ended = process.communicate("\n")
    assert (process.returncode, *(text.strip() for text in ended)) == (status, out, told)
