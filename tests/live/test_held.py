"""Descriptors of autotune in a script's process, which the script may close."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from autotune.recorder.live.adviser import Parent
from autotune.results.live import LiveLog


@pytest.mark.parametrize("is_reused", [True, False])
def test_a_channel_that_the_script_has_closed_is_left_alone(
    is_reused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `os.closerange` closes it; a file of the script's own may have its number then."""
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, Path("own").open("wb", buffering=0) as own:
        listener.bind("live")
        listener.listen()
        parent = Parent("live")
        number = os.dup(0)  # the lowest one that is free, which the channel gets
        os.close(number)
        parent.ask({})
        os.close(number)
        if is_reused:
            os.dup2(own.fileno(), number)
        assert parent.answer() == []
        parent.tell("pace")
        if is_reused:
            os.write(number, b"own")
            os.close(number)
    assert Path("own").read_bytes() == (b"own" if is_reused else b"")


def test_a_log_that_the_script_has_closed_is_left_alone(tmp_path: Path) -> None:
    """The script's own file has its number then, is not written to, and stays open."""
    said: list[str] = []
    log = LiveLog(said.append)
    number = os.dup(0)
    os.close(number)
    log.open(tmp_path / "result.json", "train.py")
    os.close(number)
    with (tmp_path / "own").open("wb", buffering=0) as own:
        assert own.fileno() == number
        log.add({"event": "pace"})
        del log
        own.write(b"own")
    assert (tmp_path / "own").read_bytes() == b"own"
    assert said == ["the log cannot be written any more, training goes on: the script has closed it"]
