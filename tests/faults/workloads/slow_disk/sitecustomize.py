"""Put on the command's path, this gives it a disk that is slow: a result, or a journal's line, takes its time."""

import os
import time

_fsync = os.fsync
RESULT_SECONDS, JOURNAL_SECONDS = 3.0, 60.0


def fsync(descriptor):
    """Tells the test that it has begun, and waits."""
    name = os.readlink(f"/proc/self/fd/{descriptor}")
    for variable, part, seconds in (
        ("FAULTS_WRITING", ".json.", RESULT_SECONDS),
        ("FAULTS_BUSY", ".journal", JOURNAL_SECONDS),
    ):
        if variable in os.environ and part in name:
            with open(os.environ[variable], "w"):
                time.sleep(seconds)
    _fsync(descriptor)


if {"FAULTS_WRITING", "FAULTS_BUSY"} & os.environ.keys():
    os.fsync = fsync
