"""The recorder's side of the socket to the command, by a real one."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from autotune.recorder.live.adviser import Parent


@pytest.mark.parametrize("is_reused", [True, False])
def test_a_descriptor_that_the_script_has_closed_is_left_alone(
    is_reused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `os.closerange` does; a file of the script's own may have its number then."""
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
