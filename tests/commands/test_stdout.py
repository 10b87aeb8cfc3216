"""What is printed on stdout, where that cannot be written."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune import cli
from autotune.results.files import write_document
from tests.factories import make_result
from tests.processes import ROOT


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["schema"],
        ["show", "a.json", "--json"],
        ["report", "a.json"],
        ["compare", "a.json", "--format", "md"],
    ],
)
def test_a_full_disk_behind_stdout_is_one_sentence(arguments: list[str], tmp_path: Path) -> None:
    """And an exit status of its own, not Python's."""
    write_document(make_result(), tmp_path / "a.json")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", *arguments], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: stdout cannot be written: No space left on device")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_another_file_that_cannot_be_written_is_not_taken_for_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its error is not autotune's own, and shows where it comes from."""

    def fails(**_: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(OSError, match="No space left"):
        cli.main()
    assert capsys.readouterr().err == ""


def test_a_reader_that_has_gone_is_told_nothing(tmp_path: Path) -> None:
    """As under `head`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", "schema"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    process.wait(30)


@pytest.mark.parametrize("command", ["show", "compare", "watch"])
def test_an_encoding_without_these_characters_gets_their_numbers(command: str, tmp_path: Path) -> None:
    """As in the locale C of many containers."""
    write_document(make_result(), tmp_path / "a.json")
    events = ({"event": "started", "command": "×", "host": "", "pid": 1}, {"event": "exited", "status": 0})
    (tmp_path / "a.live.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    done = subprocess.run(
        [sys.executable, "-m", "autotune", command, "a.json"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}, capture_output=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\xd7" in done.stdout
