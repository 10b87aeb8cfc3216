"""What a script does to files is undone, by its parent, by the parent's watch-dog, or by whoever tunes next."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest

import autotune
from autotune.measuring.records import Outcome
from autotune.recorder import snapshot
from autotune.recorder.reverting import KEPT_BYTES, revert, sentence
from autotune.scripts import ScriptIsolation
from autotune.scripts.user_files import OWNER, ProtectedFiles, cache_folder
from tests.example_scripts import START_SECONDS, alone, script

JOURNALLING = (
    "import os, shutil, sqlite3, subprocess, sys\nfrom autotune.recorder import journal\njournal.begin(sys.argv[1])\n"
)


STEPS = (
    "weight = torch.nn.Parameter(torch.zeros(2))",
    "weight.grad = torch.ones(2)",
    "torch.optim.SGD([weight], 0.1).step()",
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files, a folder, a link and a database."""
    import sqlite3

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    place = tmp_path / "home"
    (place / "old" / "deep").mkdir(parents=True)
    (place / "log.txt").write_text("mine\n")
    (place / "notes.txt").write_text("precious\n")
    (place / "old" / "a.txt").write_text("a")
    (place / "old" / "deep" / "b.txt").write_text("b")
    (place / "latest").symlink_to("log.txt")
    with sqlite3.connect(place / "runs.db") as database:
        database.execute("create table runs (name)")
    database.close()
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def kept(home: Path, tmp_path: Path) -> ProtectedFiles:
    """Of a run whose script is about to start."""
    snapshot_of = ProtectedFiles(tmp_path / "run")
    snapshot.look_before(str(snapshot_of.folder), str(home), set())
    return snapshot_of


def does(kept: ProtectedFiles, *lines: str, in_loop: bool = False, imports: str = "sys") -> None:
    """Runs lines of a script with the recorder's eyes on its files."""
    start = f"import {imports}\n" + JOURNALLING + ("journal.in_loop()\n" if in_loop else "")
    if "torch" in imports:
        start += "from autotune.recorder.saving import leave_out_checkpoints\nleave_out_checkpoints(journal.begun())\n"
    subprocess.run([sys.executable, "-c", start + "\n".join(lines), str(kept.folder)], check=True)


def tree(home: Path) -> dict[str, str | bytes]:
    """All paths below a folder: what files hold, and where links lead."""
    paths = sorted(home.rglob("*"))
    links = {str(path): f"-> {path.readlink()}" for path in paths if path.is_symlink()}
    files = {str(path): path.read_bytes() for path in paths if path.is_file() and not path.is_symlink()}
    return {str(path): "" for path in paths} | files | links


@pytest.mark.parametrize(
    "lines",
    [
        ["open('log.txt', 'a').write('more')", "open('latest', 'w').write('through a link')"],
        ["os.truncate('log.txt', 1)", "os.close(os.open('notes.txt', os.O_WRONLY | os.O_TRUNC))"],
        ["os.remove('log.txt')", "os.remove('latest')", "open('log.txt', 'w').write('another')"],
        ["shutil.rmtree('old')", "os.makedirs('old/new')", "open('old/a.txt', 'w').write('z')"],
        ["open('log.tmp', 'w').write('atomic')", "os.replace('log.tmp', 'log.txt')"],
        ["os.rename('notes.txt', 'moved.txt')", "open('moved.txt', 'a').write('more')"],
        ["os.rename('old', 'older')", "open('older/c.txt', 'w').write('c')", "os.remove('older/a.txt')"],
        ["shutil.move('old', 'backup')", "os.makedirs('old')", "open('old/a.txt', 'w').write('fresh')"],
        ["os.makedirs('out/run/1')", "open('out/run/1/x', 'w').write('x')", "os.symlink('out', 'last')"],
        ["os.remove('log.txt')", "os.link('notes.txt', 'log.txt')"],
        ["os.remove('log.txt')", "os.symlink('notes.txt', 'log.txt')", "open('log.txt', 'a').write('x')"],
        ["with sqlite3.connect('runs.db') as d: d.execute('insert into runs values (1)')"],
        ["os.mkdir('out')", "with sqlite3.connect('out/new.db') as d: d.execute('create table t (a)')"],
        ["os.mkdir('out')", "subprocess.run(['sh', '-c', 'echo x > out/below; mkdir out/more'])"],
        ["os.mkdir('out')", "subprocess.run(['mv', 'notes.txt', 'out/'])"],
    ],
)
def test_what_a_script_does_to_files_is_undone(lines: list[str], kept: ProtectedFiles, home: Path) -> None:
    """Names, contents and links are what they were."""
    before = tree(home)
    does(kept, *lines)
    assert tree(home) != before
    kept.close()
    assert tree(home) == before


def test_what_was_done_is_told(home: Path, tmp_path: Path) -> None:
    """Files reverted, made, and those that nobody could revert."""
    notes: list[str] = []
    kept = ProtectedFiles(tmp_path / "run", notes.append)
    kept.begin()
    does(kept, "open('log.txt', 'a').write('more')", "os.makedirs('out/deep')", "open('out/deep/x', 'w')")
    does(kept, "subprocess.run(['sh', '-c', 'echo x >> notes.txt; echo y > new.bin'])")
    kept.close()
    (told,) = notes
    assert "reverted: log.txt" in told
    assert "removed, since the script had made them: out;" in told
    assert "somebody else meanwhile, and left as they are: new.bin, notes.txt" in told
    assert (home / "notes.txt").read_text() == "precious\nx\n"


def test_nothing_is_told_where_nothing_was_touched(home: Path, tmp_path: Path) -> None:
    """Nor is a folder left, or the watch-dog."""
    notes: list[str] = []
    kept = ProtectedFiles(tmp_path / "run", notes.append)
    kept.begin()
    does(kept, "print(open('log.txt').read(), os.listdir())")
    kept.close()
    assert notes == []
    assert not list(cache_folder().iterdir())


def test_a_cache_is_left_alone(kept: ProtectedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled for a burst serves the user's training."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    does(kept, f"os.mkdir({str(tmp_path / 'compiled')!r})", f"open({str(tmp_path / 'compiled' / 'x')!r}, 'w')")
    kept.close()
    assert (tmp_path / "compiled" / "x").exists()


def test_files_of_a_project_that_is_its_own_environment_are_kept(kept: ProtectedFiles, home: Path) -> None:
    """Python's prefix is the working directory there; what is installed below it is left alone."""
    venv.create(home, symlinks=True)
    packages = next(home.glob("lib/python*/site-packages"))
    lines = "open('log.txt', 'a').write('more'); open(sys.argv[2], 'w').write('x')"
    code = f"import sys; sys.path.append({str(Path(autotune.__file__).parent)!r}); from recorder import journal\n"
    code += f"journal.begin(sys.argv[1]); {lines}"
    subprocess.run([home / "bin" / "python", "-c", code, str(kept.folder), packages / "made"], check=True)
    kept.close()
    assert (home / "log.txt").read_text() == "mine\n"
    assert (packages / "made").exists()


def test_a_burst_begins_as_the_one_before_it(kept: ProtectedFiles, home: Path) -> None:
    """What training did is undone; what the start-up made, which still runs, stays for now."""
    does(kept, "os.mkdir('out')", "journal.in_loop()", "os.mkdir('out/epoch')", "open('log.txt', 'a').write('1')")
    revert(str(kept.folder), "loop")
    assert (home / "out").is_dir()
    assert not (home / "out" / "epoch").exists()
    assert (home / "log.txt").read_text() == "mine\n"
    does(kept, "open('log.txt', 'a').write('2')", in_loop=True)
    kept.close()
    assert (home / "log.txt").read_text() == "mine\n"
    assert not (home / "out").exists()


def test_data_that_a_start_has_made_serves_the_next_one(kept: ProtectedFiles, home: Path) -> None:
    """What is small is made again, so that a script that refuses to overwrite starts; in the end all of it goes."""
    before = tree(home)
    does(kept, "os.mkdir('out')", f"os.mkdir('data'); open('data/x', 'wb').write(bytes({KEPT_BYTES}))")
    does(kept, "open('data/index', 'w').write('x')")
    kept.revert("start")
    assert sorted(path.name for path in home.iterdir() if path.name in {"out", "data"}) == ["data"]
    assert (home / "data" / "index").exists()
    kept.close()
    assert tree(home) == before


def test_own_files_in_a_folder_that_the_script_makes_stay(kept: ProtectedFiles, home: Path) -> None:
    """A result that is written there meanwhile; the script makes the folder as if it were not there yet."""
    (home / "results" / "here").mkdir(parents=True)
    kept.spare(home / "results" / "here" / "train.")
    does(kept, "os.mkdir('results')", "open('results/scores', 'w').write('x')")
    (home / "results" / "here" / "train.json").write_text("{}")
    kept.close()
    assert [path.name for path in (home / "results").rglob("*")] == ["here", "train.json"]


def test_what_is_too_large_to_be_copied_is_cut_where_it_was_only_added_to(kept: ProtectedFiles, home: Path) -> None:
    """And told where it was written to otherwise."""
    small = "journal.MOST_COPIED_BYTES = 2"
    does(kept, small, "open('log.txt', 'a').write('more')", "open('notes.txt', 'w').write('gone')")
    told = revert(str(kept.folder), "end")
    assert (home / "log.txt").read_text() == "mine\n"
    assert told.too_large == [str(home / "notes.txt")]


def test_a_large_file_that_goes_on_another_disk_than_the_journals_comes_back(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed with its folder, replaced, or renamed: its own name on its own disk is kept, and nothing else is left."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == home.stat().st_dev:
        pytest.skip("one file system holds both")
    before = tree(home)
    with tempfile.TemporaryDirectory(dir=memory) as elsewhere:
        monkeypatch.setenv("XDG_CACHE_HOME", elsewhere)
        kept = ProtectedFiles(tmp_path / "run")
        lines = ["shutil.rmtree('old')", "open('new', 'w').write('another'); os.replace('new', 'log.txt')"]
        does(kept, "journal.MOST_COPIED_BYTES = 0", *lines, "os.rename('notes.txt', 'moved.txt')")
        assert (home / "log.txt").read_text() == "another"
        kept.close()
    assert tree(home) == before


def test_a_script_fails_rather_than_change_a_file_that_could_not_be_copied(kept: ProtectedFiles, home: Path) -> None:
    """As on a full disk: neither by opening it, nor by replacing it, nor by torch's own writer below Python."""
    (home / "large.bin").write_bytes(bytes(20_000))
    before = tree(home)
    does(
        kept,
        "import contextlib, resource",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))",
        "def fails(what):",
        "    try: what()",
        "    except OSError as error: assert 'a burst must not change it' in str(error), error",
        "    else: raise AssertionError",
        "fails(lambda: open('large.bin', 'w'))",
        "fails(lambda: os.truncate('large.bin', 0))",
        "fails(lambda: torch.save([1], 'large.bin'))",
        "fails(lambda: os.rename('large.bin', 'other.bin'))",
        imports="torch",
    )
    kept.close()
    assert tree(home) == before


@pytest.mark.parametrize("above", [".", ".."])
def test_a_cache_that_holds_the_project_leaves_its_files_protected(
    above: str, kept: ProtectedFiles, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a container names its whole volume."""
    monkeypatch.setenv("HF_HOME", str(home / above))
    does(kept, "open('log.txt', 'a').write('more')")
    kept.close()
    assert (home / "log.txt").read_text() == "mine\n"


def test_what_is_saved_before_the_first_step_is_saved_and_undone(kept: ProtectedFiles, home: Path) -> None:
    """A script reads again what it has prepared; what could not be reverted is not written to."""
    before = tree(home)
    (home / "large").write_text("more than may be copied")
    does(
        kept,
        "journal.MOST_COPIED_BYTES = 10",
        "torch.save([1, 2], 'cache.pt')",
        "assert torch.load('cache.pt') == [1, 2]",
        "safetensors.torch.save_file({'a': torch.ones(3)}, filename='log.txt')",
        "assert safetensors.torch.load_file('log.txt')['a'].sum() == 3",
        "torch.save([1, 2], 'large')",
        imports="torch, safetensors.torch",
    )
    assert (home / "large").read_text() == "more than may be copied"
    assert (home / "cache.pt").exists()
    kept.close()
    (home / "large").unlink()
    assert tree(home) == before


def test_a_checkpoint_is_an_empty_file_that_can_be_renamed(kept: ProtectedFiles, home: Path) -> None:
    """What was saved there before stays; what is no file is written to as ever."""
    before = tree(home)
    does(
        kept,
        *STEPS,
        "torch.save(weight, 'last.tmp')",
        "assert os.path.getsize('last.tmp') == 0",
        "os.replace('last.tmp', 'last.pt')",
        "torch.save(weight, 'notes.txt')",
        "assert open('notes.txt').read() == 'precious\\n'",
        "import io; buffer = io.BytesIO(); torch.save(weight, buffer); assert buffer.tell() > 100",
        "torch.save(weight, 'best.pt')",
        in_loop=True,
        imports="torch",
    )
    assert (home / "last.pt").exists()
    told = revert(str(kept.folder), "end")
    assert tree(home) == before
    text = sentence(told, lambda paths: " ".join(Path(path).name for path in paths)) or ""
    assert "removed, since the script had made them: last.pt;" in text
    assert "not written, though a checkpoint was saved there: best.pt last.tmp notes.txt" in text


def test_samples_are_saved(kept: ProtectedFiles, home: Path) -> None:
    """Here and in workers: it is read again in the next epoch; in the end it is gone."""
    before = tree(home)
    does(
        kept,
        *STEPS,
        "class Samples(list):",
        "    def __getitem__(self, index):",
        "        path = list(self)[index]",
        "        if not os.path.exists(path): torch.save(index, path)",
        "        return torch.load(path)",
        "for workers, names in enumerate((['a.pt', 'b.pt'], ['c.pt', 'd.pt'])):",
        "    loader = torch.utils.data.DataLoader(Samples(names), num_workers=workers)",
        "    assert [int(one) for _ in range(2) for one in loader] == [0, 1, 0, 1]",
        in_loop=True,
        imports="torch",
    )
    kept.close()
    assert tree(home) == before


@pytest.mark.slow
def test_a_script_trains_that_reads_and_renames_what_it_has_saved(home: Path) -> None:
    """In a look and in a burst; nothing is left of either."""
    before = tree(home)
    with ScriptIsolation(script("saving")) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation)
    assert burst.outcome is Outcome.OK, burst.reason
    assert tree(home) == before


def test_a_parent_that_is_killed_leaves_files_as_they_were(home: Path, tmp_path: Path) -> None:
    """Its watch-dog ends the script and puts them back; the run's temporary folder goes too."""
    before, run = tree(home), tmp_path / "run"
    script = JOURNALLING + "open('log.txt', 'a').write('more')\nos.mkdir('out')\nprint(1, flush=True)\nimport time\n"
    script += "while True: time.sleep(0.02); open('out/x', 'a').write('x')\n"
    parent = f"""
import os, subprocess, sys
from pathlib import Path
from autotune.scripts.user_files import ProtectedFiles
kept = ProtectedFiles(Path({str(run)!r}))
kept.begin()
environment = {{**os.environ, "AUTOTUNE_RUN": {str(run)!r}}}
command = [sys.executable, "-c", {script!r}, str(kept.folder)]
subprocess.Popen(command, env=environment, stdout=subprocess.PIPE).stdout.readline()
os.kill(os.getpid(), {int(signal.SIGKILL)})
"""
    done = subprocess.Popen([sys.executable, "-c", parent], stderr=subprocess.PIPE, text=True)
    _, told = done.communicate(timeout=60)  # standard error is open for as long as the watch-dog lives
    assert done.returncode == -signal.SIGKILL
    assert "autotune was killed; files of the script's bursts: reverted" in told
    assert tree(home) == before
    assert not run.exists()
    assert not list(cache_folder().iterdir())


def test_whoever_tunes_next_reverts_what_a_dead_machine_left(kept: ProtectedFiles, home: Path, tmp_path: Path) -> None:
    """The journal outlives the run; another machine's, and those of runs that live, are left alone."""
    before = tree(home)
    does(kept, "open('log.txt', 'w').write('half')", "os.mkdir('out')")
    owner = kept.folder / OWNER
    ProtectedFiles(tmp_path / "run")
    assert tree(home) != before  # that one lives
    node, _, created = json.loads(owner.read_text())
    ended = subprocess.Popen(["true"])
    ended.wait()
    owner.write_text(json.dumps(["elsewhere", ended.pid, created]))
    ProtectedFiles(tmp_path / "run")
    assert tree(home) != before
    owner.write_text(json.dumps([node, ended.pid, created - 1000]))
    notes: list[str] = []
    ProtectedFiles(tmp_path / "run", notes.append)
    assert tree(home) == before
    assert "an earlier run was killed; files of the script's bursts: reverted: log.txt" in notes[0]
    assert not kept.folder.exists()


def test_a_folder_elsewhere_is_compared_too(kept: ProtectedFiles, tmp_path: Path) -> None:
    """What lay in it when the script first wrote there."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "theirs").write_text("x")
    lines = [f"os.chdir({str(elsewhere)!r})", "open('made', 'w')", "subprocess.run(['sh', '-c', 'echo y >> theirs'])"]
    does(kept, *lines)
    told = revert(str(kept.folder), "end")
    assert told.removed == [str(elsewhere / "made")]
    assert told.others == [str(elsewhere / "theirs")]


def test_more_files_than_are_looked_at_are_told(
    home: Path, kept: ProtectedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where there is something else to tell."""
    monkeypatch.setattr(snapshot, "MOST_FILES", 5)
    snapshot.look_before(str(kept.folder), str(home), set())
    assert revert(str(kept.folder), "end").missed
