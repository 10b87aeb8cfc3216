"""What is left when processes are killed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from autotune.bursts.hosts import cleanup
from autotune.bursts.hosts.cleanup import end_processes, make_run_folder, remove_shared_memory
from autotune.hardware import this_process

if sys.platform != "win32":
    import fcntl


def test_half_a_library_does_not_stay_in_the_compilers_cache(tmp_path: Path) -> None:
    """Whoever compiles the same code next would load it; what was finished before stays."""
    building = tmp_path / "cabc_CxxBuild"
    building.mkdir()
    for name in ("cabc.so", "cabc.cpp", "cabcdef.so"):
        (tmp_path / name).touch()
    compiler = subprocess.Popen(["sleep", "60"], cwd=building)
    end_processes(lambda: [psutil.Process(compiler.pid)] if compiler.poll() is None else [])
    compiler.wait(10)
    assert {path.name for path in tmp_path.iterdir()} == {"cabc.cpp", "cabcdef.so"}


def orphaned(folder: Path) -> Path:
    """A file of torch's in shared memory, whose process is not there: of another container, perhaps."""
    gone = next(pid for pid in range(4_000_000, 1, -1) if not psutil.pid_exists(pid))
    file = folder / f"torch_{gone}_1_0"
    file.touch()
    return file


def test_what_a_killed_process_left_in_shared_memory_is_removed() -> None:
    """Nobody has it open."""
    file = orphaned(Path("/dev/shm"))
    remove_shared_memory(time.time() - 60)
    assert not file.exists()


def test_shared_memory_that_somebody_has_open_stays() -> None:
    """Containers may share the folder, and do not see each other's processes."""
    file = orphaned(Path("/dev/shm"))
    try:
        if not leases_are_known(file):
            pytest.skip("this kernel leases no file in shared memory, so that nobody can tell")
        with file.open("r+b"):
            remove_shared_memory(time.time() - 60)
        assert file.exists()
    finally:
        file.unlink(missing_ok=True)


def leases_are_known(file: Path) -> bool:
    """Whether the kernel leases files in that folder."""
    with file.open("rb") as opened, contextlib.suppress(OSError):
        fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        return True
    return False


def test_a_start_removes_only_what_a_killed_run_of_this_user_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other users may put anything into the temporary folder, and other containers may share it."""
    here, pid, start = this_process()
    owners = {
        "killed": [here, pid, "another start"], "alive": [here, pid, start], "broken": {}, "empty": [], "null": None,
        "elsewhere": ["another container", pid, "another start"], "foreign": [here, pid, "another start"],
    }  # fmt: skip
    if os.geteuid() != 0:  # only root can give a folder away
        del owners["foreign"]
    for name, owner in owners.items():
        (tmp_path / f"autotune-{name}").mkdir()
        (tmp_path / f"autotune-{name}" / "owner.json").write_text(json.dumps(owner))
        if name == "foreign":
            os.chown(tmp_path / "autotune-foreign", 12345, -1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "owner.json").write_text(json.dumps(owners["killed"]))
    (tmp_path / "autotune-link").symlink_to(tmp_path / "mine")
    (tmp_path / "autotune-pipe").mkdir()
    os.mkfifo(tmp_path / "autotune-pipe" / "owner.json")
    monkeypatch.setattr(cleanup, "_place_for_sockets", lambda: tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    made = make_run_folder()
    assert {path.name for path in tmp_path.iterdir()} == (before | {made.name}) - {"autotune-killed"}
    assert (tmp_path / "mine" / "owner.json").exists()
