"""What a script writes lies in layers: each job sees those of start-up, and none of another job."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.errors import IsolationError, UsageError
from autotune.sandbox import landlock
from autotune.sandbox import protection as module
from autotune.sandbox.protection import Offer, Protection, find_offer, link_tree
from autotune.sandbox.view import MOST_OVERLAYS, Plan, _Explorer, remove_folder
from autotune.scripts import ScriptIsolation
from tests.example_scripts import script
from tests.sandbox.starting import begun, forking, python, run

LARGE = "open({!r}, 'wb').write(bytes(2**20))\n"
ROOT = Path(__file__).parents[2]
JOB = """
import json, os, subprocess, sys
sys.path.insert(0, os.path.realpath(".."))
from sandbox import inside, view
scratch, *plan = sys.argv[1:]
if not plan:
    code = "import sys; sys.path.append('..'); from sandbox import entry; entry.explore()"
    answer = subprocess.run([sys.executable, "-B", "-c", code, scratch], capture_output=True, text=True).stdout
    plan = json.loads(answer)["plan"] or sys.exit(answer)
    view.enter(view.Plan.of(plan), scratch + "/start")
    os.execv(sys.executable, [sys.executable, "-B", *sys.argv, json.dumps(plan)])
inside.enter({"mirror": None, "row": "overlay"})
inside.enter_layer({"plan": json.loads(plan[0]), "layer": scratch + "/job"})
open("mine.txt", "w").write("changed")
print(open("mine.txt").read(), end=", ")
try:
    open("locked.txt", "w")
except PermissionError:
    print("locked")
"""
"""A start in a view, and in its place a job that enters another one."""


@pytest.fixture(params=["overlay", "landlock"])
def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Protection]:
    """A protection of each row, in a folder with a file."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "mine.txt").write_text("mine")
    monkeypatch.chdir(project)
    if find_offer().row != "overlay":
        pytest.skip(f"the kernel offers no private view here: {find_offer().sentence}")
    if request.param == "landlock":
        monkeypatch.setattr(module, "_explored", lambda *_: (None, "denied by a test"))
    protection = begun(tmp_path / "run")
    assert protection.offer.row == request.param
    yield protection
    protection.close()


def test_what_is_written_is_seen_in_its_layer_alone(kept: Protection) -> None:
    """A new file, a changed one, and the same file by another start."""
    code = "open('new.txt', 'w').write('x'); open('mine.txt', 'a').write(' and more'); print(open('mine.txt').read())"
    assert python(code, kept, "one") == "mine and more"
    assert python("import os; print(os.path.exists('new.txt'), open('mine.txt').read())", kept, "two") == "False mine"
    assert os.listdir(".") == ["mine.txt"]


def test_data_of_start_up_serve_later_starts(kept: Protection) -> None:
    """What is large enough to be data, as a whole; what is small is made again, as by a first start."""
    code = "import os; os.makedirs('data/raw'); os.mkdir('out'); open('out/log', 'w').write('x')\n"
    code += LARGE.format("data/raw/all.bin") + "open('data/done', 'w').write('yes')\n"
    python(code, kept, "look")
    kept.keep_start("look")
    kept.drop("look")
    seen = "import os; print(sorted(os.listdir('.')), sorted(os.listdir('data')), os.path.getsize('data/raw/all.bin'))"
    expected = "['data', 'mine.txt'] ['done', 'raw'] 1048576"
    assert python(seen, kept, "job1") == expected
    assert python("import shutil; shutil.rmtree('data/raw')" if kept.offer.row == "overlay" else "", kept, "job2") == ""
    assert python(seen, kept, "job3") == expected
    assert os.listdir(".") == ["mine.txt"]


def test_data_that_cannot_be_linked_whole_are_made_again(kept: Protection, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the script removes one of its files meanwhile: half a data set would mislead the next start."""
    python("import os; os.mkdir('data')\n" + LARGE.format("data/one") + LARGE.format("data/two"), kept, "look")
    own, links = os.link, []

    def link(*args: object, **kwargs: object) -> None:
        links.append(args)
        if len(links) == 2:
            raise FileNotFoundError
        own(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", link)
    kept.keep_start("look")
    monkeypatch.undo()
    kept.drop("look")
    assert len(links) == 2
    assert python("import os; print(os.path.exists('data'))", kept, "job1") == "False"


def test_a_read_only_folder_is_linked_whole(tmp_path: Path) -> None:
    """As of a data set that no training may change; and it is removed again, by a user without rights of root's."""
    code = f"""
from pathlib import Path
from autotune.sandbox.protection import link_tree
from autotune.sandbox.view import remove_folder
source, target = Path({str(tmp_path)!r}, "data"), Path({str(tmp_path)!r}, "layer", "data")
(source / "raw").mkdir(parents=True)
(source / "raw" / "all.bin").write_text("all")
(source / "raw").chmod(0o555)
source.chmod(0o555)
link_tree(source, target)
print((target / "raw" / "all.bin").read_text(), oct(target.stat().st_mode & 0o777))
remove_folder(str(target))
print(target.exists())
"""
    command = [sys.executable, str(ROOT / "tests/sandbox/denied.py"), "modes", sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "all 0o555\nFalse\n", done.stderr


def test_a_fork_that_finds_no_space_leaves_no_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one may find some."""
    protection = Protection(tmp_path, lambda _: None)
    protection.offer = Offer("landlock")
    for name in ("a", "b"):
        protection.layer("server").mkdir(parents=True, exist_ok=True)
        (protection.layer("server") / name).write_text("")
    link = os.link

    def full(source: Path, target: Path, **how: bool) -> None:
        if source.name == "b":
            raise OSError(errno.ENOSPC, "No space left on device")
        link(source, target, **how)

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(IsolationError, match="free space in"):
        protection.prepare_fork("job1", "server")
    assert not protection.layer("job1").exists()


def test_a_file_that_vanishes_is_not_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script's workers remove files of theirs while another fork gets its folder."""
    for name in "abc":
        (tmp_path / "server" / name).mkdir(parents=True)
        (tmp_path / "server" / name / "file").write_text(name)
    own = os.link

    def link(source: Path, target: Path, **kwargs: bool) -> None:
        if source.parent.name == "b":
            shutil.rmtree(source.parent)
        own(source, target, **kwargs)

    monkeypatch.setattr(os, "link", link)
    link_tree(tmp_path / "server", tmp_path / "job")
    assert sorted(path.read_text() for path in (tmp_path / "job").rglob("file")) == ["a", "c"]


def test_a_link_that_start_up_makes_leads_to_nothing_kept(kept: Protection, tmp_path: Path) -> None:
    """What lies behind it is the person's: it is neither kept nor touched."""
    behind = tmp_path / "behind"
    (behind / "sealed").mkdir(parents=True)
    (behind / "large.bin").write_bytes(bytes(2**20))
    (behind / "sealed").chmod(0o555)
    python(f"import os; os.symlink({str(behind)!r}, 'latest')", kept, "look")
    kept.keep_start("look")
    (behind / "large.bin").write_bytes(b"changed meanwhile")
    kept.drop("look")
    assert python("import os; print(os.path.lexists('latest'))", kept, "job1") == "False"
    assert (behind / "sealed").stat().st_mode & 0o777 == 0o555


def test_what_a_job_changes_of_it_is_not_seen_by_the_next_one(kept: Protection) -> None:
    """It is linked, so a change in place is undone by making it again, or by a copy of its own."""
    python(LARGE.format("data.bin"), kept, "look")
    kept.keep_start("look")
    kept.drop("look")
    python("f = open('data.bin', 'r+b'); f.write(b'bad'); f.close()", kept, "job1")
    code = "import os; print(os.path.exists('data.bin') and open('data.bin', 'rb').read(3))"
    assert python(code, kept, "job2") in {"False", "b'\\x00\\x00\\x00'"}


def test_a_file_that_cannot_be_copied_whole_is_as_it_was(kept: Protection) -> None:
    """As on a full disk: a part of it would be read as the whole one."""
    Path("data.bin").write_bytes(bytes(2**20))
    code = """
import os, resource
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, limits[1]))
try:
    open("data.bin", "r+b").close()
except OSError:
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
print(len(open("data.bin", "rb").read()), sorted(os.listdir(".")))
"""
    assert python(code, kept, "one") == "1048576 ['data.bin', 'mine.txt']"


def test_processes_that_open_a_file_at_once_do_not_disturb_each_other(kept: Protection) -> None:
    """As workers do with a file that they update: each copies it first."""
    Path("data.bin").write_bytes(b"whole")
    code = """
import os, shutil, threading
copy, both = shutil.copy2, threading.Barrier(2)
def slowly(*paths):
    copy(*paths)
    both.wait(20)
shutil.copy2 = slowly
failed = []
threading.excepthook = lambda args: failed.append(args.exc_type)
opening = [threading.Thread(target=lambda: open("data.bin", "r+b").close()) for _ in range(2)]
for one in opening:
    one.start()
for one in opening:
    one.join()
print(failed, open("data.bin", "rb").read(), sorted(os.listdir(".")))
"""
    assert python(code, kept, "one") == "[] b'whole' ['data.bin', 'mine.txt']"


def test_what_training_changes_of_it_is_made_again(kept: Protection) -> None:
    """A half-changed data set would mislead the next start."""
    python(LARGE.format("one.bin") + LARGE.format("two.bin"), kept, "look")
    kept.keep_start("look")
    inside = next(path for path in kept.layer("look").rglob("two.bin"))
    with inside.open("ab") as file:  # as the script goes on to do
        file.write(b"more")
    kept.drop("look")
    assert python("import os; print(sorted(os.listdir('.')))", kept, "job1") == "['mine.txt', 'one.bin']"


def test_forked_jobs_see_the_start_and_not_each_other(kept: Protection) -> None:
    """What start-up wrote, a job may change or remove: the next one finds it."""
    code = "import os\nopen('started.txt', 'w').write('started')\nos.mkdir('out')\n"
    does = "import os\nos.rename('out', 'gone'); os.remove('started.txt'); open('mine.txt', 'w').write('bad')"
    looks = "import os\nprint(sorted(os.listdir('.')), open('mine.txt').read(), open('started.txt').read())"
    with forking(code, kept) as fork:
        assert fork(does, "job1") == (0, "")
        assert fork(looks, "job2") == (0, "['mine.txt', 'out', 'started.txt'] mine started\n")
    assert os.listdir(".") == ["mine.txt"]


def test_pipes_break_as_they_do_outside(kept: Protection) -> None:
    """Python ignores that signal, and a command would inherit it."""
    assert run(["bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}"], kept, "look") == (0, "y\n141\n")


def test_a_temporary_folder_may_be_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel shows mounts by their real paths."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    protection = begun(tmp_path / "linked" / "run")
    assert python("open('new', 'w').write('x'); print(open('new').read())", protection, "look") == "x"
    protection.close()


def test_a_project_in_shared_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be changed in earnest; unless that is what the person says."""
    place = Path(f"/dev/shm/autotune-project-{os.getpid()}")
    place.mkdir()
    try:
        monkeypatch.chdir(place)
        with pytest.raises(UsageError, match="expected a working directory on a disk, got /dev/shm"):
            begun(tmp_path / "run")
        begun(tmp_path / "other", writable=[place]).close()
    finally:
        place.rmdir()


def test_what_is_writable_is_written_in_earnest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    protection = begun(tmp_path / "run", writable=[Path("out")])
    python("open('out/a', 'w').write('x'); open('b', 'w').write('x')", protection, "look")
    protection.close()
    assert (tmp_path / "out" / "a").read_text() == "x"
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "place", ["project", pytest.param("a read-only mount", marks=pytest.mark.alone), "another disk's memory"]
)
def test_scratch_may_lie_anywhere(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the project itself; with the project on a read-only mount; in memory."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "mine.txt").write_text("mine")
    run_folder = {"project": project / "tmp", "another disk's memory": Path(f"/dev/shm/autotune-{os.getpid()}")}
    mounted = place == "a read-only mount" and os.geteuid() == 0
    if mounted:
        subprocess.run(["mount", "--bind", project, project], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", project], check=True)
    monkeypatch.chdir(project)
    folder = run_folder.get(place, tmp_path / "run")
    try:
        protection = begun(folder)
        status, printed = run(["sh", "-c", "cat mine.txt; echo bad > mine.txt"], protection, "look")
        protection.close()
        assert printed.startswith("mine")
        assert (status != 0) == (mounted or protection.offer.row != "overlay")
    finally:
        if mounted:
            subprocess.run(["umount", "-l", project], check=True)  # this process is in it
        remove_folder(str(folder))
    assert (project / "mine.txt").read_text() == "mine"


@pytest.fixture
def mounts() -> Iterator[Callable[..., None]]:
    """Mounts something, until the end of the test."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    points: list[Path] = []

    def mount(point: Path, *words: object) -> None:
        point.mkdir(exist_ok=True)
        subprocess.run(["mount", *map(str, words), str(point)], check=True)
        points.append(point)

    yield mount
    for point in reversed(points):
        subprocess.run(["umount", "-l", str(point)], check=True)


def test_a_file_that_cannot_be_looked_at_ends_no_plan(tmp_path: Path) -> None:
    """It has vanished since its folder was listed, or is a mount of another user, such as `/run/user/1000/doc`."""
    plan = Plan(str(tmp_path), [])
    (tmp_path / "skeleton").mkdir()
    too_long = f"/{'x' * 300}"
    for path in ("/gone", too_long):
        _Explorer(plan)._place_file(path)
    assert plan.read_only == {too_long: "it cannot be copied (File name too long)"}


def test_a_folder_of_another_user_is_closed_in_a_view_without_a_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder for temporary files holds thousands of them, and each mount takes milliseconds."""
    (tmp_path / "taken apart" / "closed").mkdir(parents=True)
    plan = Plan(str(tmp_path / "scratch"), [])
    monkeypatch.setattr("autotune.sandbox.view.os.access", lambda *_: False)  # root would be let in
    monkeypatch.setattr("autotune.sandbox.view.os.geteuid", lambda: 12345)
    _Explorer(plan)._take_apart(str(tmp_path / "taken apart"))
    inside = Path(f"{tmp_path}/scratch/skeleton{tmp_path}/taken apart/closed")
    assert (plan.overlays, plan.read_only) == ([], {})
    assert inside.stat().st_mode & 0o777 == 0


def test_a_view_of_too_many_mounts_is_not_looked_for_to_the_end(tmp_path: Path) -> None:
    """Each trial takes milliseconds; what is read-only outside takes none."""
    plan = Plan(str(tmp_path), [])
    plan.read_only = {f"/{number}": "" for number in range(MOST_OVERLAYS + 1)}
    explorer = _Explorer(plan)
    explorer._place(str(tmp_path))
    explorer._trials += MOST_OVERLAYS
    with pytest.raises(OSError, match=f"more than {MOST_OVERLAYS} overlays; the search ended at {tmp_path}"):
        explorer._place(str(tmp_path))


@pytest.mark.alone  # what is mounted meanwhile is a part of other tests' views
def test_a_mount_that_carries_no_overlay_can_be_read(
    tmp_path: Path, mounts: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note names it, and the option that lets bursts write there; the kernel stacks two overlays at most."""
    for name in ("lower", "first-upper", "first-work", "second-upper", "second-work"):
        (tmp_path / name).mkdir()
    (tmp_path / "lower" / "mine.txt").write_text("mine")
    for name, lower in (("first", "lower"), ("second", "first")):
        layers = (
            f"lowerdir={tmp_path / lower},upperdir={tmp_path / f'{name}-upper'},workdir={tmp_path / f'{name}-work'}"
        )
        mounts(tmp_path / name, "-t", "overlay", "overlay", "-o", layers)
    monkeypatch.chdir(tmp_path / "second")
    notes: list[str] = []
    protection = begun(tmp_path / "run", notes)
    status, printed = run(["sh", "-c", "cat mine.txt; echo bad > mine.txt"], protection, "look")
    protection.close()
    assert status != 0
    assert printed.startswith("mine")
    assert f"bursts can read {tmp_path / 'second'}, but not write to it: overlay carries no overlay" in notes[0]
    assert f"--writable {tmp_path / 'second'}" in notes[0]
    assert (tmp_path / "lower" / "mine.txt").read_text() == "mine"


@pytest.mark.alone
def test_a_disk_that_fills_up_ends_what_fills_it(
    tmp_path: Path, mounts: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script meets a full disk; a further start is refused in one sentence, until there is space again."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "mine.txt").write_text("mine")
    monkeypatch.chdir(project)
    mounts(tmp_path / "small", "-t", "tmpfs", "-o", "size=80m", "tmpfs")
    protection = begun(tmp_path / "small" / "run")
    status, printed = run(["sh", "-c", "dd if=/dev/zero of=mine.txt bs=1M count=200"], protection, "look")
    with pytest.raises(IsolationError, match=r"No space left on device.*; free space in .*, or point TMPDIR"):
        run(["true"], protection, "job1")
    protection.drop("look")
    assert run(["true"], protection, "job2") == (0, "")
    protection.close()
    assert status != 0
    assert "No space left" in printed
    assert (project / "mine.txt").read_text() == "mine"


def test_two_runs_in_one_folder_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sees what it has written itself."""
    monkeypatch.chdir(tmp_path)
    one, other = begun(tmp_path / "one"), begun(tmp_path / "other")
    python("open('log', 'a').write('one')", one, "look")
    assert python("import os; print(os.path.exists('log'))", other, "look") == "False"
    for each in (one, other):
        each.close()


def test_no_protection_needs_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence with both ways out; with --writable, what remains is said."""
    monkeypatch.setattr(module, "find_offer", lambda *_, **__: Offer("none", ("the kernel is too old",)))
    with pytest.raises(UsageError, match=r"the kernel is too old.*--writable \. ;.*build\(\)"):
        begun(tmp_path / "run")
    notes: list[str] = []
    begun(tmp_path / "other", notes, writable=[tmp_path]).close()
    assert "this is all the protection there is" in notes[0]


def test_a_full_disk_is_said_before_the_first_burst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has started by then."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage._replace(free=2**20))
    with pytest.raises(IsolationError, match=r"expected 64.0 MiB or more of free space in .*, got 1.00 MiB"):
        begun(tmp_path / "run")


@pytest.mark.parametrize("kind", ["own", "below a link", "link", "foreign", "named"])
def test_another_user_opens_no_folder_of_yours_to_bursts(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a link where NVIDIA's MPS has its pipes by default; a folder that you name yourself may be one."""
    home, place = tmp_path / "home", tmp_path / "nvidia-mps"
    home.mkdir()
    if kind in {"link", "named"}:
        place.symlink_to(home)
    else:
        place.mkdir()
    if kind == "foreign":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(place, 12345, -1)
    (tmp_path / "tmp").symlink_to(tmp_path)
    monkeypatch.setattr(module, "_MPS", str(tmp_path / "tmp" / place.name if kind == "below a link" else place))
    if kind == "named":
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(place))
    expected = {"own": [str(place)], "below a link": [str(place)], "named": [str(home)]}.get(kind, [])
    assert Protection(tmp_path, lambda _: None)._through == expected


@pytest.mark.parametrize(
    ("printed", "path"),
    [
        ("rm: cannot remove 'out/a': Permission denied", "out/a"),
        ("PermissionError: [Errno 13] Permission denied: 'out/x'", "out/x"),
        ("sh: 1: cannot create keep.txt: Permission denied", "keep.txt"),
    ],
)
def test_what_landlock_denied_is_named(
    printed: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the option that allows it; in no other row, and not where it is denied outside, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    protection = Protection(tmp_path, lambda _: None)
    assert protection.hint(printed) == ""
    protection.offer = Offer("landlock")
    full = os.path.abspath(path)
    assert f"{full} was left as it is" in protection.hint(printed)
    assert f"--writable {os.path.dirname(full)} allows it" in protection.hint(printed)
    assert protection.hint("cat: /nowhere/at/all: Permission denied") == ""


@pytest.mark.parametrize(
    ("printed", "free", "told"),
    [
        ("OSError: [Errno 30] Read-only file system: '/mnt/data/out/x'", 2**40, "--writable /mnt/data lets"),
        ("mkdir: cannot create directory ‘/mnt/data/out’: Read-only file system", 2**40, "--writable /mnt/data lets"),
        ("/: Permission denied\nsh: 1: cannot create /mnt/x: Read-only file system", 2**40, "--writable /mnt lets"),
        ("touch: cannot touch '/cdrom/x': Read-only file system", 2**40, None),
        ("touch: cannot touch '/other/x': Read-only file system", 2**40, None),
        ("[Errno 28] No space left on device", 2**20, "which has 1.00 MiB left; delete something, or point TMPDIR"),
        ("write error: No space left on device", 2**40, None),
    ],
)
def test_what_a_view_denied_is_named(
    printed: str, free: int, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the way out; not what is read-only outside, too, and not a full disk that is not autotune's."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage._replace(free=free))
    protection = Protection(tmp_path, lambda _: None)
    plan = Plan(str(tmp_path), [])
    plan.read_only = {"/mnt": "nfs carries no overlay", "/mnt/data": "lustre carries no overlay", "/cdrom": ""}
    protection.offer = Offer("overlay", plan=plan)
    assert (told or "") in protection.hint(printed)
    assert bool(protection.hint(printed)) == (told is not None)


@pytest.mark.parametrize(
    ("given", "why"),
    [("view._PIVOT_ROOT.clear()", "the system calls of {} are not known"), ("view.mounts = list", "as in a chroot")],
)
def test_why_there_is_no_view_is_known(given: str, why: str, tmp_path: Path) -> None:
    """On a processor of another kind, and where the root is no mount."""
    code = f"import sys; sys.path.append('autotune'); from sandbox import entry, view; {given}; entry.explore()"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert why.format(os.uname().machine) in json.loads(done.stdout or "{}").get("error", ""), done.stderr


def test_a_search_for_a_view_that_takes_too_long_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the command that looks for one."""
    monkeypatch.setattr(module, "EXPLORING_SECONDS", 0.0)
    assert find_offer(tmp_path).reasons[0] == "no private view: looking for one took more than 0 s"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")
@pytest.mark.parametrize("user", [12345, 65534], ids=["a normal user", "nobody"])
def test_jobs_of_a_user_without_roots_rights_have_views_of_their_own(user: int) -> None:
    """In a user namespace: all other owners have the number of nobody, and a command has few of its rights."""
    foreign = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own folders are closed to others
    foreign.chmod(0o755)
    shutil.copytree(ROOT / "autotune" / "sandbox", foreign / "sandbox")
    (foreign / "job.py").write_text(JOB)
    own = foreign / "own"
    (own / "scratch").mkdir(parents=True)
    for path in (own / "mine.txt", own / "locked.txt"):
        path.write_text("mine")
    (own / "locked.txt").chmod(0o444)
    for path in (own, *own.iterdir()):
        os.chown(path, user, user)
    command = ["/usr/bin/python3", "-B", "../job.py", str(own / "scratch")]
    try:
        done = subprocess.run(command, cwd=own, user=user, group=user, extra_groups=(), capture_output=True, text=True)
        written = (own / "mine.txt").read_text()
    except OSError:
        pytest.skip("no Python that others may run")
    finally:
        remove_folder(str(foreign))
    if '"plan": null' in done.stderr:
        pytest.skip("users without root's rights get no namespace here")
    assert (done.stdout, written) == ("changed, locked\n", "mine"), done.stderr


def test_what_a_normal_users_script_may_change_is_kept_by_its_modes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a view of a user without root's rights, programs pass over them; Landlock keeps them."""
    if not landlock.version():
        pytest.skip("the kernel offers no Landlock here")
    monkeypatch.setattr(module.os, "geteuid", lambda: 12345)
    offer = find_offer(tmp_path, [str(tmp_path)], is_writable=True)
    assert offer.row == "landlock"
    assert "--writable" in offer.sentence


def test_a_view_that_cannot_be_entered_is_not_offered() -> None:
    """Also not to root."""
    code = "from autotune.sandbox.protection import find_offer; print(find_offer().sentence)"
    command = [sys.executable, str(ROOT / "tests/sandbox/denied.py"), "pivot", sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "no private view: [Errno 1] pivot_root" in done.stdout, done.stderr


@pytest.mark.parametrize(("free", "row"), [(2**26, "landlock"), (2**31, "overlay")])
def test_landlock_is_better_than_a_view_without_space(
    free: int, row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose temporary folder can hold no layers, and whose shared memory has 64 MiB."""
    if find_offer().row != "overlay" or not landlock.version():
        pytest.skip("the kernel offers only one of them here")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage._replace(free=free))
    monkeypatch.setattr(module, "_PLACES", (str(tmp_path),))
    assert find_offer(Path("/proc/self")).row == row


@pytest.mark.parametrize(
    ("code", "seconds", "told"),
    [
        ("import sys; sys.exit('no memory')", 60.0, "sandbox: it ended with status 1; last output: no memory$"),
        ("import time; time.sleep(60)", 0.5, r"its sandbox \(timed out\); end other work on this machine$"),
    ],
)
def test_why_no_sandbox_was_entered_is_told(
    code: str, seconds: float, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what its process printed last, or by the time that it had."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "ENTERING_SECONDS", seconds)
    monkeypatch.setattr(Protection, "command", lambda *_, **__: [sys.executable, "-c", code])
    with ScriptIsolation(script("plain")) as isolation, pytest.raises(IsolationError, match=told):
        isolation.start(60.0)


def test_no_process_and_no_folder_is_left(tmp_path: Path) -> None:
    """After a start that has ended."""
    protection = begun(tmp_path / "run")
    python("open('a', 'w').write('x')", protection, "look")
    watchdog = protection._watchdog
    protection.drop("look")
    protection.close()
    assert watchdog is not None
    assert watchdog.poll() == 0
    assert not (tmp_path / "run" / "layers").exists()
