"""The parent of a training that is tuned while it runs, beside a script that speaks the recorder's words itself."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from autotune.results.files import write_document
from autotune.results.live import MAY_MOVE, MOVED
from autotune.results.result import Result, read_result
from tests.factories import make_result
from tests.forked import Forked
from tests.inside import run_inside
from tests.processes import ROOT, Finished, heed_signals, run, wait_for_file

SPEAKS = """
import json, os, socket, sys, time

orders = json.loads(os.environ["AUTOTUNE_RECORDER"])
FACTS = {
    "device": "cpu", "cpus": 2, "threads": 2, "forms": ["foreach", "fused"], "step_seconds": 0.1, "wait_share": 0.5,
    "loader": {"samples": 8, "iterable": False, "arguments": {"batch_size": 4, "num_workers": 0}},
    "left": {"memory_format": "it is not played yet"}, "t": 1.0, "steps": 10, "seconds": 1.0,
}

class Told:
    def __init__(self, pid=os.getpid(), **facts):
        self.pid = pid
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.channel.connect(orders["socket"])
        self.tell("began", **{**FACTS, **facts}, pid=pid)
        self.lines = self.channel.makefile("rb")
    def tell(self, event, **content):
        self.channel.sendall(json.dumps({"event": event, **content}).encode() + b"\\n")
    def candidates(self):
        return json.loads(self.lines.readline())["candidates"]
    def see(self):
        value = {**json.load(open("seen.json")), "pid": self.pid}
        other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        other.connect(orders["socket"])
        other.sendall(json.dumps({"event": "seen", "value": value}).encode() + b"\\n")
    def play(self, one, verdict, ratio, at, pairs=8, reason=""):
        found = {"name": one["name"], "ratio": ratio, "low": ratio / 1.05, "high": ratio * 1.05, "pairs": pairs}
        self.tell("playing", name=one["name"], t=at, steps=20)
        self.tell("pair", **found, t=at + 1)
        if verdict:
            self.tell("decided", **found, knobs=one["knobs"], verdict=verdict, reason=reason, t=at + 2)
"""
WHOLE = """
told = Told()
told.see()
workers, prefetching, threads, fused, *others = told.candidates()
for knobs, seconds in ({}, 0.5), ({**workers["knobs"], **threads["knobs"]}, 0.25), ({}, 0.3):
    told.tell("block", knobs=knobs, timed_steps=10, timed_seconds=seconds, waited_seconds=0.1, t=1.5)
told.play(workers, "won", 1.5, 2.0)
told.play(prefetching, "lost", 1.0, 5.0)
told.play(threads, "won", 1.2, 8.0)
told.tell("block", knobs={**workers["knobs"], **threads["knobs"]}, timed_steps=1, timed_seconds=9.0, waited_seconds=0.1,
          t=10.5)  # of a later race: a neighbour has stalled it
told.tell("decided", name=fused["name"], knobs=fused["knobs"], verdict="failed", reason="it raised", ratio=1.0,
          low=0.0, high=None, pairs=0, t=11.0)
told.tell("pace", steps_per_second=18.0, wait_share=0.01, memory_bytes=2**30, setting=workers["name"], t=12.0)
told.tell("over", won={**workers["knobs"], **threads["knobs"]}, gained=1.8, cost_seconds=2.0, saved_seconds=1.0,
          paid=False, complete=True, why="all candidates are decided", left={}, t=12.0)
json.dump([workers, threads], open("words.json", "w"))
print("trained", flush=True)
sys.exit(7)
"""
TRAINS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.ones(4)

torch.set_num_threads(2)
model = nn.Sequential(nn.Linear(4, 3))
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(8):
    batches = iter(DataLoader(Rows(), batch_size=4, shuffle=True))
    for batch in batches:
        model(batch).mean().backward()
        optimizer.step()
print(batches._num_workers, torch.get_num_threads(), flush=True)
"""


@pytest.fixture(scope="module")
def seen(forked: Forked, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The description of a real script by a real look."""
    folder = tmp_path_factory.mktemp("seen")
    (folder / "train.py").write_text(TRAINS)
    return dataclasses.asdict(forked.look(("train.py",), folder))


def train(folder: Path, body: str, *options: str, seen: dict[str, Any] | None = None) -> Finished:
    """Runs ``autotune train`` with a script of this body."""
    (folder / "train.py").write_text(TRAINS)
    (folder / "speaks.py").write_text(SPEAKS + body)
    if seen is not None:
        (folder / "seen.json").write_text(json.dumps(seen))
    return run(["train", "--out", "result.json", *options, "--", sys.executable, "speaks.py"], folder)


def log_of(folder: Path) -> list[dict[str, Any]]:
    """All events of the log."""
    return [json.loads(line) for line in (folder / "result.live.jsonl").read_text().splitlines()]


def changes(result: Result) -> dict[str, Any]:
    """What a result changes."""
    return {knob: now for knob, (_, now) in result.changed_knobs.items()}


@pytest.fixture(scope="module")
def whole(seen: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """A training whose search comes to its end: its folder, and how it has ended."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, train(folder, WHOLE, seen=seen)


def test_what_has_won_is_written_and_told(whole: tuple[Path, Finished]) -> None:
    """The result has the product of the winners, a trial a candidate; `show`, `launch` and `watch` take it."""
    folder, done = whole
    assert (done.status, done.out, done.left) == (7, "trained\n", ())
    result = read_result(folder / "result.json")
    assert (result.status, result.stopped_by) == ("complete", "exhausted")
    assert changes(result) == {"num_workers": 1, "prefetch_factor": 2, "num_threads": 1}
    assert result.speedup is not None
    assert result.speedup.confirmed
    assert result.speedup.ratio == pytest.approx(1.8)
    assert result.speedup.ci95 == pytest.approx((1.8 / 1.05**2, 1.8 * 1.05**2))
    sides = [side.measurement for side in (result.baseline, result.best)]
    assert [side.samples_per_second for side in sides if side is not None] == pytest.approx(
        [4 * 20 / 0.8, 4 * 10 / 0.25]
    )
    trials = [(trial.changes.get("num_threads"), trial.outcome.value, trial.ratio) for trial in result.trials]
    assert trials == [(None, "ok", 1.5), (None, "ok", 1.0), (1, "ok", 1.2), (1, "crashed", None)]
    assert result.trials[2].partner == {"num_workers": 1, "prefetch_factor": 2}
    told = done.err.splitlines()
    assert "settings of num_workers, prefetch_factor, num_threads, optimizer_impl are tried while it trains" in told[0]
    assert told[1] == "autotune: your setting of memory_format stays: it is not played yet"
    assert told[2] == "autotune: num_workers=1, prefetch_factor=2 is faster: 1.50× (1.43 – 1.58, 8 pairs of blocks)"
    assert told[4] == "autotune: optimizer_impl=fused is left out: it raised"
    assert "num_workers=1, prefetch_factor=2, num_threads=1: 1.80× (1.63 – 1.98); the search has cost 2 s" in told[5]
    assert "pays for itself after 1.25 s more" in told[5]
    assert MOVED not in done.err
    assert [event["event"] for event in log_of(folder)[:3]] == ["started", "began", "planned"]
    assert log_of(folder)[-1] == {"event": "exited", "status": 7}

    shown = run_inside(["show", "result.json"], folder)
    assert (shown.status, "confirmed speed-up: 1.80×" in shown.out) == (0, True), shown.err
    launched = run(["launch", "result.json", "--", sys.executable, "train.py"], folder)
    assert (launched.status, launched.out) == (0, "1 1\n"), launched.err
    watched = run_inside(["watch", "result.json"], folder)
    last = watched.out.splitlines()[-1]
    assert watched.status == 0, watched.err
    assert "ended with exit status 7; rate: 18 steps/s, 1.80× that of the first steps (claimed: 1.80×)" in last
    assert "waiting: 1 % of the time, for data; memory: 1.00 GiB" in last


def test_candidates_come_in_the_recorders_words(whole: tuple[Path, Finished]) -> None:
    """As `torch_settings.process_settings` and DataLoader name them."""
    workers, threads = json.loads((whole[0] / "words.json").read_text())
    knobs = {"num_workers": 1, "prefetch_factor": 2}
    assert workers == {
        "name": "num_workers=1, prefetch_factor=2", "knobs": knobs, "loader": knobs, "process": {}, "optimizer": {},
        "model": {},
    }  # fmt: skip
    assert (threads["loader"], threads["process"]) == ({}, {"set_threads": 1})


BEGINS = "told = Told()\ntold.see()\nfirst, *_ = told.candidates()\n"
EARLY = BEGINS + "told.play(first, {verdict!r}, {ratio}, 2.0)\n"
WON, LOST, OPEN = (EARLY.format(verdict=verdict, ratio=1.5) for verdict in ("won", "lost", ""))
UNCLEAR = EARLY.format(verdict="", ratio=1.0)
OVER = "told.tell('over', won={won}, why='it has failed', complete={complete}, t=9.0)\n"
CUT, WHOLLY = (OVER.format(won="{}", complete=complete) for complete in (False, True))
CUT_WON = OVER.format(won="first['knobs']", complete=False)
SO_FAR = "(settings decided: 0 of 7): num_workers=1, prefetch_factor=2 reached"
TOO_FEW = f"no setting is known to be faster {SO_FAR} 1.50× (1.43 – 1.58) in 8 pairs of blocks, too few to decide"


@pytest.mark.parametrize(
    ("body", "status", "changed", "reason"),
    [
        pytest.param(WON, "partial", 2, None, id="ended early"),
        pytest.param(UNCLEAR, "partial", 0, f"no setting was clearly faster {SO_FAR} 1.000×", id="unclear"),
        pytest.param(OPEN, "partial", 0, TOO_FEW, id="undecided"),
        pytest.param(OPEN + CUT, "partial", 0, TOO_FEW, id="cut short"),
        pytest.param(WON + CUT_WON, "partial", 2, None, id="cut short, won"),
        pytest.param(BEGINS + CUT, "partial", 0, "no pair of blocks was measured", id="nothing, cut short"),
        pytest.param(BEGINS + WHOLLY, "complete", 0, "no pair of blocks was measured", id="nothing"),
        pytest.param(
            f"{BEGINS}told.play(first, 'lost', 1.0, 2.0, pairs=0, reason='its steps take twice as long')\n",
            "partial",
            0,
            "num_workers=1, prefetch_factor=2 is left out (settings decided: 1 of 7): its steps take twice as long",
            id="overrun",
        ),
        pytest.param(WON + CUT, "partial", 0, "was faster, but is given up: it has failed", id="taken back"),
        pytest.param(WON + WHOLLY, "complete", 0, "was faster, but is given up: it has failed", id="taken back late"),
    ],
)
def test_a_result_says_how_far_the_search_came(
    body: str, status: str, changed: int, reason: str | None, tmp_path: Path, seen: dict[str, Any]
) -> None:
    """What was decided counts, and nothing else."""
    assert train(tmp_path, body, "-q", seen=seen).err == ""
    result = read_result(tmp_path / "result.json")
    assert (result.status, len(changes(result))) == (status, changed)
    assert (result.speedup is None) is (reason is not None)
    assert (reason or "") in (result.speedup_reason or "")


STATE = "num_workers=1, prefetch_factor=2"
CUT_SHORT = "the search has ended early (it has failed; settings decided: 1 of 7): "


@pytest.mark.parametrize(
    ("former", "body", "is_kept", "state"),
    [
        ("complete", WON, True, f"the training ended before the search did; so far, {STATE} is faster"),
        ("complete", WON + CUT_WON, True, f"{CUT_SHORT}{STATE}: 1.50×"),
        ("complete", LOST + CUT, True, f"{CUT_SHORT}so far, no setting is faster than yours"),
        ("partial", WON, False, f"the training ended before the search did; so far, {STATE} is faster"),
        ("partial", LOST, True, "the training ended before the search did; so far, no setting was clearly faster"),
        ("partial", LOST + CUT, True, f"{CUT_SHORT}so far, no setting is faster than yours"),
    ],
)
def test_a_search_that_ends_early_replaces_no_better_result(
    former: str, body: str, is_kept: bool, state: str, tmp_path: Path, seen: dict[str, Any]
) -> None:
    """The partial one is written beside a complete one, or one with a gain; it says how far the search came."""
    write_document(make_result(status=former), tmp_path / "result.json")
    before = (tmp_path / "result.json").read_bytes()
    told = train(tmp_path, body, seen=seen).err
    name = "result-partial.json" if is_kept else "result.json"
    assert ((tmp_path / "result.json").read_bytes() == before) is is_kept
    assert ("result.json stays as it is" in told) is is_kept
    assert (f"result file: {name}" in told, read_result(tmp_path / name).status) == (True, "partial")
    assert (f"autotune launch {name} --" in told) is body.startswith(WON)
    assert (told.count(state), told.count("ended")) == (1, 1)


def test_a_search_that_shows_no_gain_replaces_none_beside_a_complete_result(
    tmp_path: Path, seen: dict[str, Any]
) -> None:
    """A former training has written it there."""
    files = {
        tmp_path / f"{name}.json": status for name, status in (("result", "complete"), ("result-partial", "partial"))
    }
    for file, status in files.items():
        write_document(make_result(status=status), file)
    before = [file.read_bytes() for file in files]
    told = train(tmp_path, LOST, seen=seen).err
    assert [file.read_bytes() for file in files] == before
    assert "stay as they are: they hold more than this training has shown" in told
    assert "result file:" not in told


def test_what_was_not_tried_in_the_end_is_said_once(tmp_path: Path, seen: dict[str, Any]) -> None:
    """A reason that was known before is not repeated."""
    why = "the training was too short"
    left = {"compile_mode": why, "memory_format": "it is not played yet"}
    told = train(tmp_path, f"{LOST}told.tell('over', why={why!r}, left={left!r}, t=9.0)\n", seen=seen)
    assert told.err.count(f"your setting of compile_mode stays: {why}") == 1
    assert told.err.count("it is not played yet") == 1


GIVEN_UP = """
told = Told()
told.see()
workers, *others = told.candidates()
told.play(workers, "won", 1.5, 2.0)
told.tell("over", won={}, gained=1.0, cost_seconds=2.0, saved_seconds=1.0, paid=False, why="it is slow",
          left={}, t=9)
"""
FAILED = """
told = Told()
told.see()
workers, prefetching, *others = told.candidates()
for one in workers, prefetching:
    told.tell("decided", name=one["name"], knobs=one["knobs"], verdict="failed", reason="it raised", ratio=9.0, low=8.0,
              high=10.0, pairs=3, t=11.0)
"""


@pytest.mark.parametrize(
    ("body", "sentences"),
    [
        (
            GIVEN_UP,
            [
                "num_workers=1, prefetch_factor=2 was faster, but is given up (it is slow): training continues with",
                "; train as before: num_workers=1, prefetch_factor=2 was faster, but is given up\n",
            ],
        ),
        (FAILED, ["num_workers=1, prefetch_factor=2 is left out: it raised\n", "so far, num_workers="]),
    ],
)
def test_what_is_given_up_is_said_once_with_the_reason(
    body: str, sentences: list[str], tmp_path: Path, seen: dict[str, Any]
) -> None:
    """No sentence says that it is slower, or that nothing was."""
    told = train(tmp_path, body, seen=seen).err
    assert [told.count(sentence) for sentence in sentences] == [1] * len(sentences)
    assert "9.00×" not in told
    assert "no setting is faster" not in told


def test_what_gains_nothing_is_not_launched(tmp_path: Path, seen: dict[str, Any]) -> None:
    """The lines, and `show`, say that the training ended, and what is known."""
    told = train(tmp_path, LOST, seen=seen).err
    known = "no setting was clearly faster (settings decided: 1 of 7): num_workers=1, prefetch_factor=2 reached 1.50×"
    assert f"the training ended before the search did; so far, {known}" in told
    assert "result file: result.json; train as before: no gain is proven; to try more, repeat your command" in told
    shown = " ".join(run_inside(["show", "result.json"], tmp_path).out.split())
    assert "PARTIAL: the training ended before the search did; this is what was known by then" in shown
    assert "1 setting tried in 4 s of training; stopped by: end of training" in shown
    assert [word for word in ("launch", "burst", "host memory", "interrupted") if word in told + shown] == []


def test_a_result_names_the_torch_of_the_script(tmp_path: Path, seen: dict[str, Any]) -> None:
    """With its build, as trainings note it; packages may name none, or be those of another interpreter."""
    source = {**seen["source"], "here": {**seen["source"]["here"], "torch": "2.9.0+cu126"}}
    train(tmp_path, BEGINS + WHOLLY, "-q", seen={**seen, "source": source})
    result = read_result(tmp_path / "result.json")
    assert {result.software.torch, result.hardware.software.torch} == {"2.9.0+cu126"}


UNSEEN = "told = Told()\ntold.candidates()\nprint('trained')\nsys.exit(3)\n"
MOVES = "told = Told(moves_augmentation=True)\nprint(len(told.candidates()))\n"
OWN_WORKERS = """told = Told(loader={**FACTS['loader'], 'arguments': {'batch_size': 4, 'num_workers': 1}})
print(len(told.candidates()) > 1)
"""
ONE = """told = Told(moves_augmentation=True, forms=[], left={'num_workers': 'so'})\nprint(len(told.candidates()))\n"""
OTHERS = "print(bool(Told().candidates()), Told(pid=1).candidates(), Told(pid=2).candidates())\n"
SHORT = """
import torch
weight = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    weight.sum().backward()
    optimizer.step()
print("trained")
"""
RANKS = "os.environ['WORLD_SIZE'] = '2'" + SHORT.replace("range(3):", "range(30):\n    time.sleep(0.06)")
ENDED = "the training ended after 3 steps, before other settings could be tried"
SAYS_WRONG = "told = Told(threads='many')\nprint(told.lines.readline())\n"


@pytest.mark.parametrize(
    ("body", "status", "out", "err"),
    [
        pytest.param(UNSEEN, 3, "trained", "no result is written: the script ended before autotune", id="unseen"),
        pytest.param(SHORT, 0, "trained", f"nothing was tuned: {ENDED}", id="short"),
        pytest.param(RANKS, 0, "trained", "nothing was tuned: several ranks train together", id="ranks"),
        pytest.param("print('done')", 0, "done", "no training loop was seen, so nothing was", id="no training"),
        pytest.param(
            "print('done')\nsys.exit(5)",
            5,
            "done",
            "autotune: the script ended (status 5) before anything was tuned\n",
            id="failed at once",
        ),
        pytest.param(OTHERS, 0, "True [] []", "several processes train: autotune tunes the first one", id="several"),
        pytest.param(MOVES, 0, "7", f"autotune watch result.live.jsonl'\nautotune: {MOVED}\n", id="augmentation"),
        pytest.param(OWN_WORKERS, 0, "True", f"autotune: {MAY_MOVE}\n", id="own workers"),
        pytest.param(ONE, 0, "1", "autotune: 1 setting of num_threads is tried while it trains", id="one"),
        pytest.param(SAYS_WRONG, 0, "b''", "tuning has failed, training goes on (ValidationError", id="fault"),
    ],
)
def test_a_script_ends_as_it_would_by_itself(body: str, status: int, out: str, err: str, tmp_path: Path) -> None:
    """Whatever becomes of the tuning; one line says it."""
    done = train(tmp_path, body)
    assert (done.status, done.out) == (status, f"{out}\n")
    assert done.err.count(err) == 1
    assert not (tmp_path / "result.json").exists()


def test_a_full_disk_ends_no_training(tmp_path: Path, seen: dict[str, Any]) -> None:
    """Neither the log nor the result can be written; a line each says so."""
    (tmp_path / "seen.json").write_text(json.dumps(seen))
    (tmp_path / "speaks.py").write_text(SPEAKS + WHOLE)
    command = f"ulimit -f 2; exec {sys.executable} -m autotune train --out result.json -- {sys.executable} speaks.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "trained\n")
    assert done.stderr.count("the log cannot be written any more, training goes on: File too large") == 1
    assert done.stderr.count("the result file could not be written to result.json: File too large") == 1


LASTS = """
told = Told()
told.candidates()
open("began", "w").close()
while not os.path.exists("killed"):
    time.sleep(0.05)
try:
    while True:
        told.tell("pace", steps_per_second=1.0, t=2.0)
except OSError:
    open("went on", "w").close()
"""


def test_a_training_goes_on_when_the_command_is_killed(tmp_path: Path) -> None:
    """It is not tied to its parent, and `watch` ends, since the log will not go on."""
    (tmp_path / "speaks.py").write_text(SPEAKS + LASTS)
    command = [sys.executable, "-m", "autotune", "train", "--out", "result.json", "--", sys.executable, "speaks.py"]
    killed = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    wait_for_file(tmp_path / "began")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    (tmp_path / "killed").touch()
    wait_for_file(tmp_path / "went on")
    with (tmp_path / "result.live.jsonl").open("a") as log:
        log.write('{"event": "pace", "steps_per')  # half a line
    watched = run_inside(["watch", "result.live.jsonl"], tmp_path)
    assert (watched.status, watched.err) == (0, "")


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With what to do."""
    watched = run_inside(["watch", "result.json"], tmp_path)
    assert watched.status == 2
    assert "expected the log of a training at result.live.jsonl" in watched.err


STOPPED = """
import signal
signal.signal(signal.SIGINT, lambda *_: sys.exit(4))
print("ready", flush=True)
time.sleep(60)
"""


def test_an_interruption_reaches_the_script(tmp_path: Path) -> None:
    """Its own exit status is the command's."""
    (tmp_path / "speaks.py").write_text(SPEAKS + STOPPED)
    command = [sys.executable, "-m", "autotune", "train", "--", sys.executable, "speaks.py"]
    running = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=heed_signals,
    )  # fmt: skip
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGINT)
    assert running.wait(20.0) == 4


@pytest.mark.parametrize("first_line", ["", "#!/no/such/shell\n"], ids=["none", "no such shell"])
def test_a_script_that_cannot_be_started_is_told(first_line: str, tmp_path: Path) -> None:
    """A shell starts it all the same; the system needs to know the interpreter."""
    (tmp_path / "train.sh").write_text(f"{first_line}exit 0\n")
    (tmp_path / "train.sh").chmod(0o755)
    done = run_inside(["train", "--", "./train.sh"], tmp_path)
    assert (done.status, "error: the script cannot be started" in done.err) == (2, True)
    assert "a first line such as #!/bin/sh, or its interpreter before it: -- sh train.sh" in " ".join(done.err.split())


@pytest.mark.parametrize("words", [["train"], ["launch", "result.json"]], ids=["train", "launch"])
def test_a_training_without_a_temporary_folder_is_told(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the variable that helps."""

    def full(*_: Any, **__: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_document(make_result(), tmp_path / "result.json")
    monkeypatch.setattr(tempfile, "mkdtemp", full)
    done = run_inside([*words, "--", sys.executable, "train.py"], tmp_path)
    assert done.status == 2
    assert "No space left on device); point TMPDIR at one" in " ".join(done.err.split())
