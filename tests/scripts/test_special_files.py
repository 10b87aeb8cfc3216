"""Sockets and pipes that a script makes, and the modes and times that it changes, are undone as its writing is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.recorder import snapshot
from autotune.scripts.user_files import ProtectedFiles

START = "import os, pathlib, shutil, socket, subprocess, sys\nfrom autotune.recorder import journal\n"
DAY = 86_400


@pytest.fixture
def notes() -> list[str]:
    """What a person is told."""
    return []


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]) -> ProtectedFiles:
    """Of a run whose script is about to start, in a folder with files, a folder, a pipe and a socket."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    home = tmp_path / "home"
    (home / "old").mkdir(parents=True)
    monkeypatch.chdir(home)
    Path("old", "a.txt").write_text("a")
    Path("log.txt").write_text("mine\n")
    Path("run.sh").write_text("true\n")
    Path("run.sh").chmod(0o640)
    os.utime("run.sh", (DAY, DAY))
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("live.sock")
    files = ProtectedFiles(tmp_path / "run", notes.append)
    snapshot.look_before(str(files.folder), str(home), set())
    return files


def does(kept: ProtectedFiles, *lines: str, more: str = "") -> None:
    """Runs lines of a script with the recorder's eyes on its files; `more` is its second argument."""
    code = "\n".join([START + "journal.begin(sys.argv[1])", *lines])
    subprocess.run([sys.executable, "-c", code, str(kept.folder), more], check=True, timeout=60)


def state() -> dict[str, tuple[int, ...]]:
    """Of everything below the working directory: mode, owner and inode; of files the time and their contents, too."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(Path().rglob("*")):
        seen = path.lstat()
        found[str(path)] = (seen.st_mode, seen.st_uid, seen.st_gid)
        if path.is_file():
            text = path.read_bytes() if os.access(path, os.R_OK) else b""
            found[str(path)] += (seen.st_mtime_ns, hash(text))
        elif not path.is_dir():
            found[str(path)] += (seen.st_ino,)
    return found


@pytest.mark.parametrize(
    "lines",
    [
        ["socket.socket(socket.AF_UNIX).bind('new.sock')"],
        ["socket.socket(socket.AF_UNIX).bind(b'new.sock')"],
        ["os.mkfifo('new')"],
        ["os.mkfifo(path='new', mode=0o600)", "os.mknod('file')"],
        ["os.mkfifo('new', dir_fd=os.open('old', os.O_RDONLY))"],
        ["os.remove('live.sock')", "socket.socket(socket.AF_UNIX).bind('live.sock')"],
        ["os.remove('pipe')", "open('pipe', 'w').write('no pipe')"],
        ["os.rename('pipe', 'other')", "os.rename('live.sock', 'other.sock')"],
        ["os.remove('log.txt')", "os.mkfifo('log.txt')"],
        ["os.remove('log.txt')", "os.mkdir('log.txt')"],
        ["os.remove('log.txt')", "socket.socket(socket.AF_UNIX).bind('log.txt')"],
        ["shutil.rmtree('old')", "os.mkfifo('old')"],
        ["shutil.rmtree('old')", "open('old', 'w').write('x')"],
    ],
)
def test_sockets_and_pipes_are_undone(lines: list[str], kept: ProtectedFiles) -> None:
    """Those that were made go; those that were there are the very ones again, and whatever they stood for."""
    before = state()
    does(kept, *lines)
    assert state() != before
    kept.close()
    assert state() == before


def test_a_socket_is_bound_again_by_the_next_start(kept: ProtectedFiles, notes: list[str]) -> None:
    """A burst ends without the script's own end, which would have removed it."""
    line = "socket.socket(socket.AF_UNIX).bind('trainer.sock')"
    does(kept, line)
    kept.revert("start")
    does(kept, line)
    kept.close()
    assert not Path("trainer.sock").exists()
    assert notes == ["files of the script's bursts: removed, since the script had made them: trainer.sock"]


def test_a_socket_that_a_killed_start_has_left_is_in_nobodys_way(kept: ProtectedFiles) -> None:
    """As where a script begins again beside the other side of its duet; one that lives, or is the user's own, is."""
    bind = "socket.socket(socket.AF_UNIX).bind({!r})"
    refused = "try: {}\nexcept OSError: pass\nelse: raise AssertionError"
    does(kept, bind.format("new.sock"))
    again = refused.format(bind.format("new.sock"))
    does(
        kept,
        "living = socket.socket(socket.AF_UNIX); living.bind('new.sock'); living.listen()",
        "assert subprocess.run([sys.executable, '-c', sys.argv[2], sys.argv[1]]).returncode == 0",
        more=START + "journal.begin(sys.argv[1])\n" + again,
    )
    does(kept, refused.format(bind.format("live.sock")))
    before = Path("live.sock").stat().st_ino
    kept.close()
    assert not Path("new.sock").exists()
    assert Path("live.sock").stat().st_ino == before


def test_a_name_that_no_file_has_is_none(kept: ProtectedFiles, notes: list[str]) -> None:
    """Linux's abstract sockets, those that the kernel names, and those of the network."""
    does(
        kept,
        "socket.socket(socket.AF_UNIX).bind('\\0trainer')",
        "socket.socket(socket.AF_UNIX).bind('')",
        "socket.socket().bind(('127.0.0.1', 0))",
    )
    kept.close()
    assert notes == []


def test_two_bursts_beside_each_other_make_the_same_pipe(kept: ProtectedFiles) -> None:
    """Each as if it were the first; one that was there before is in their way as ever."""
    does(kept, "os.mkfifo('new')")
    does(kept, "os.mkfifo('new')")
    with pytest.raises(subprocess.CalledProcessError):
        does(kept, "os.mkfifo('pipe')")
    kept.close()
    assert not Path("new").exists()


@pytest.mark.parametrize(
    "lines",
    [
        ["os.chmod('run.sh', 0o755)"],
        ["os.fchmod(os.open('run.sh', os.O_RDONLY), 0o755)"],
        ["os.utime('run.sh', (1, 1))"],
        ["pathlib.Path('run.sh').touch()"],
        ["os.chmod('run.sh', 0o755, dir_fd=os.open('.', os.O_RDONLY))"],
        ["os.chmod('old', 0o700)"],
        ["os.chmod('old', 0o700)", "open('old/b.txt', 'w')", "os.chmod('old', 0o500)"],
        ["os.makedirs('new/deep')", "open('new/deep/x', 'w')", "os.chmod('new/deep', 0o500)", "os.chmod('new', 0o500)"],
        ["open('run.sh', 'a').write('x')", "os.chmod('run.sh', 0o600)", "os.utime('run.sh', (1, 1))"],
        ["os.chmod('run.sh', 0o400)", "os.rename('run.sh', 'b.sh')", "os.chmod('b.sh', 0o777)"],
        ["os.link('run.sh', 'b.sh')", "os.chmod('b.sh', 0o777)"],
        ["open('run.sh', 'w').write('true\\n')", "subprocess.run(['chmod', '777', 'run.sh'])"],
        ["open('run.sh', 'w').write('false\\n')", "subprocess.run(['chmod', '0', 'run.sh'])"],
        ["os.remove('run.sh')", "open('run.sh', 'w').write('x')", "os.chmod('run.sh', 0o444)"],
        ["journal.MOST_COPIED_BYTES = 0", "os.chmod('run.sh', 0o444)"],
        ["journal.MOST_COPIED_BYTES = 0", "os.rename('run.sh', 'b.sh')", "os.chmod('b.sh', 0o444)"],
    ],
)
def test_modes_and_times_are_given_back(lines: list[str], kept: ProtectedFiles, notes: list[str]) -> None:
    """Whether the file was written to besides or not."""
    before = state()
    does(kept, *lines)
    assert state() != before
    kept.close()
    assert state() == before
    assert len(notes) <= 1
    assert "left as they are" not in "".join(notes)


@pytest.mark.skipif(os.geteuid() != 0, reason="nobody but root gives files away")
def test_owners_are_given_back(kept: ProtectedFiles) -> None:
    """Of a file that was given away, and of one of another user's that was written to or replaced."""
    os.chown("log.txt", 1234, 1234)
    os.chmod("log.txt", 0o4700)
    before = state()
    does(kept, "os.chown('run.sh', 1234, 1234)", "os.chown('old', 1234, -1)", "open('log.txt', 'a').write('x')")
    kept.revert("start")
    assert state() == before
    does(kept, "os.rename('log.txt', 'moved.txt')", "open('log.txt', 'w').write('x')")
    kept.close()
    assert state() == before


def test_what_is_given_back_is_told(kept: ProtectedFiles, notes: list[str]) -> None:
    """Not of what the script has made, and what goes with it."""
    does(kept, "os.chmod('run.sh', 0o755)", "open('new', 'w')")
    does(kept, "os.chmod('new', 0o600)", "os.chmod('log.txt', os.stat('log.txt').st_mode)")
    kept.close()
    (told,) = notes
    assert told == ("files of the script's bursts: reverted: run.sh; removed, since the script had made them: new")


def test_a_mode_that_was_changed_below_python_is_told(kept: ProtectedFiles, notes: list[str]) -> None:
    """As a change of size is; it is left, since it may be the user's."""
    does(kept, "subprocess.run(['chmod', '777', 'run.sh'])")
    kept.close()
    assert "somebody else meanwhile, and left as they are: run.sh" in notes[0]


def test_a_snapshot_of_an_older_autotune_tells_no_modes(kept: ProtectedFiles) -> None:
    """A run that was killed before an upgrade is reverted after it."""
    before = snapshot.kept_snapshot(str(kept.folder))
    before["folders"] = {
        place: {name: seen[:3] for name, seen in entries.items()} for place, entries in before["folders"].items()
    }
    assert snapshot.differences(before, {}) == []


def test_a_folder_whose_name_another_one_had_is_told_once(kept: ProtectedFiles, notes: list[str]) -> None:
    """As reverted: that the other one is removed goes without saying."""
    does(kept, "os.rename('old', 'old.bak')", "os.makedirs('old')", "open('old/a.txt', 'w').write('new')")
    kept.close()
    assert Path("old", "a.txt").read_text() == "a"
    assert notes == ["files of the script's bursts: reverted: old"]
