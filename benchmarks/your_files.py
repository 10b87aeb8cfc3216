"""What it costs and what it keeps that scripts run in a sandbox.

    python -m benchmarks.your_files          # half an hour on two cores, with nothing beside it

- **rate**: a script that the loader bounds (`benchmarks.file_reader`), outside and inside a private view, in turns
  (`benchmarks.script_turns`). It decodes photos; and as the worst case, it reads raw files of 12 KB.
- **read**: the samples of that script, read in one process, outside and inside, in turn.
- **start**: the command `true`, outside and inside, in turn; what entering adds.
- **adversary**: the commands of `tests/sandbox/adversary.py` in each row; how many changed a file.
- **scripts**: those of `benchmarks.real_scripts`, tuned for a minute in each row, where `--sources` names them; which
  were tuned, and whether a file in their folders changed.
- **kills**: `autotune run` beside a real training in the same folder, which writes checkpoints and a log; everything of
  autotune's is killed at a random moment, watchdog included. Counted are files that were lost, changed or reverted.

Writes benchmarks/output/your_files.json. The exit status is 1 when a figure misses its goal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from autotune.sandbox.process_marks import marked
from autotune.sandbox.protection import Protection
from benchmarks.file_reader import files_in
from benchmarks.in_sandbox import started
from benchmarks.output import save
from benchmarks.ratios import paired_ratio
from benchmarks.real_scripts import ENTRIES, QUIET, Entry, prepared
from benchmarks.script_turns import CLOCK, Run, compared_in_pairs
from tests.sandbox.adversary import changes, states

ROOT = Path(__file__).parents[1]
RATE_GOAL, START_GOAL_SECONDS = 0.01, 0.050
ROWS = {"private view": "none", "private view of a user": "root", "Landlock": "namespaces"}
"""What `tests/sandbox/denied.py` denies, so that a row is the best one."""
TUNED = "60s"
SAME_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**31)}
"""Without these, two processes of one script differ by 2 to 5 % all their lives, more than what is measured."""
FOLDERS = 2
LATEST_KILL_SECONDS = 9.0
"""By then a run has looked at the script, forked from it and played candidates."""
TRAINING = """
import os, time
number = 0
while True:
    number += 1
    os.makedirs("out", exist_ok=True)
    with open("out/last.tmp", "w") as file: file.write(f"real {number}")
    os.replace("out/last.tmp", "out/last.pt")
    with open("log.txt", "a") as file: file.write(f"{number}\\n")
    with open(f"out/step{number % 50}.pt", "w") as file: file.write("real")
    time.sleep(0.01)
"""
"""Stands for a training of one's own in the folder: it writes as one does, and an order of numbers shows any loss."""
SCRIPT = """
import os, shutil, torch
os.makedirs("out", exist_ok=True)
open("out/last.pt", "w").write("burst")
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(512, 8), torch.randint(0, 2, (512,)))
for epoch in range(1000):
    for x, y in torch.utils.data.DataLoader(data, batch_size=16, shuffle=True):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        open("log.txt", "a").write("burst")
        open("precious.txt", "w").write("burst")
        torch.save(model.state_dict(), "out/last.pt")
    shutil.rmtree("out")
    os.makedirs("out")
"""


def rates(kind: str, pairs: int, seconds: float) -> dict[str, Any]:
    """The script's rate inside over outside, on files of a kind."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files = files_in(folder / "files", kind)
        words = [sys.executable, str(ROOT / "benchmarks" / "file_reader.py"), str(files), kind]
        inside = [sys.executable, "-m", "benchmarks.in_sandbox", str(folder / "clocks"), *words]
        (folder / "clocks").mkdir()
        environment = {"PYTHONPATH": f"{CLOCK}:{ROOT}", **SAME_HEAP}

        def pair() -> tuple[Run, Run]:
            clocks = folder / "clocks"
            return (
                Run(words, folder, environment, "steps", clocks / "outside"),
                Run(inside, folder, environment, "steps", clocks / "inside"),
            )

        return compared_in_pairs(pair, pairs, seconds)


def reads(kind: str, rounds: int) -> dict[str, Any]:
    """Samples a second, inside over outside, in turn: what a loader's rate follows, without two processes' luck."""
    with tempfile.TemporaryDirectory() as place:
        files = files_in(Path(place) / "files", kind)
        words = [sys.executable, str(ROOT / "benchmarks" / "file_reader.py"), str(files), kind, "time"]
        inside = [sys.executable, "-m", "benchmarks.in_sandbox", place, *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **SAME_HEAP}
        times: dict[str, list[float]] = {"outside": [], "inside": []}
        for _ in range(rounds):
            for name, command in (("outside", words), ("inside", inside)):
                done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
                times[name].append(float(done.stdout))
    found = paired_ratio(times["inside"], times["outside"])
    return {"ratio": found.ratio, "ci95": list(found.ci95), "seconds_per_sample": times}


def starts(rounds: int) -> dict[str, Any]:
    """Seconds until `true` has ended, outside and inside, in turn."""
    outside, inside = [], []
    with tempfile.TemporaryDirectory(prefix="autotune-") as folder:
        protection = Protection(Path(folder), lambda _: None)
        protection.begin()
        for _ in range(rounds):
            began = time.perf_counter()
            subprocess.run(["true"], check=True)
            outside.append(time.perf_counter() - began)
            began = time.perf_counter()
            started(["true"], protection)[0].wait()
            inside.append(time.perf_counter() - began)
            protection.drop("start")
        protection.close()
    added = statistics.median(inside) - statistics.median(outside)
    return {"row": protection.offer.row, "outside": outside, "inside": inside, "added_seconds": added}


def adversary() -> dict[str, Any]:
    """How many cases of each row changed a file."""
    found = {}
    for row, denied in ROWS.items():
        with tempfile.TemporaryDirectory() as place:
            command = [sys.executable, str(ROOT / "tests/sandbox/denied.py"), denied, sys.executable]
            done = subprocess.run(
                [*command, "-m", "tests.sandbox.adversary", place], cwd=ROOT, capture_output=True, text=True, check=True
            )
            told = json.loads(done.stdout)
        cases = told["cases"].values()
        found[row] = {
            "row": told["row"],
            "cases": len(cases),
            "changed": sum(bool(one["changed"]) for one in cases),
            "succeeded": sum(one["status"] == 0 for one in cases),
        }
    return found


def scripts(sources: Path, work: Path, names: Sequence[str]) -> dict[str, Any]:
    """Which scripts that nobody here wrote are tuned in each row."""
    found: dict[str, Any] = {}
    for entry in ENTRIES:
        if names and entry.name not in names:
            continue
        folder = prepared(entry, sources, work)
        found[entry.name] = {row: _tuned(entry, folder, row) for row in ("private view", "Landlock")}
        print(f"{entry.name}: {found[entry.name]}", flush=True)
    return found


def _tuned(entry: Entry, folder: Path, row: str) -> dict[str, Any]:
    before = states(folder)
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "result.json"
        denied = [sys.executable, str(ROOT / "tests/sandbox/denied.py"), ROWS[row]]
        run = [sys.executable, "-m", "autotune", "run", "--budget", TUNED, "--quiet", "--out", str(out), "--"]
        environment = {**os.environ, **QUIET, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*denied, *run, *entry.words], cwd=folder, env=environment, capture_output=True, text=True, errors="replace"
        )
        result = json.loads(out.read_text()) if out.exists() else None
    trials = [] if result is None else result["trials"]
    return {
        "status": done.returncode,
        "says": " ".join(done.stderr.split())[-300:].replace(str(Path.home()), "~") if done.returncode else "",
        "trained": sum(trial.get("outcome") == "ok" for trial in trials),
        "changed": changes(before, states(folder)),
    }


def kills(count: int) -> dict[str, Any]:
    """Kills everything of autotune's, again and again, and looks at the folder; two folders at a time."""
    with ThreadPoolExecutor(FOLDERS) as pool:
        parts = [*pool.map(partial(_kills_in_a_folder, count // FOLDERS), range(FOLDERS))]
    return {
        "kills": sum(part["kills"] for part in parts),
        "lost": [loss for part in parts for loss in part["lost"]],
        "parts": parts,
    }


def _kills_in_a_folder(count: int, seed: int) -> dict[str, Any]:
    rng, lost, moments = random.Random(seed), [], []
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as scratch:
        folder = Path(place)
        (folder / "train.py").write_text(SCRIPT)
        (folder / "precious.txt").write_text("mine")
        real = subprocess.Popen([sys.executable, "-c", TRAINING], cwd=folder)
        for number in range(count):
            moments.append(rng.uniform(0.3, LATEST_KILL_SECONDS))
            _run_and_kill(folder, Path(scratch), moments[-1])
            if wrong := _wrong(folder):
                lost.append({"kill": number, "after_seconds": moments[-1], "wrong": wrong})
        before = time.perf_counter()
        dry = [
            sys.executable,
            "-m",
            "autotune",
            "run",
            "--dry-run",
            "--budget",
            "60s",
            "--",
            sys.executable,
            "train.py",
        ]
        after = subprocess.run(dry, cwd=folder, env={**os.environ, "TMPDIR": scratch}, capture_output=True, text=True)
        real.kill()
        real.wait()
        left = [path.name for path in Path(scratch).iterdir()]
    return {
        "kills": count,
        "lost": lost,
        "after_seconds": moments,
        "next_run_status": after.returncode,
        "next_run_says": after.stderr[-500:],
        "next_run_seconds": time.perf_counter() - before,
        "left_in_scratch": left,
    }


def _run_and_kill(folder: Path, scratch: Path, seconds: float) -> None:
    command = [sys.executable, "-m", "autotune", "run", "--budget", "60s", "--quiet", "--", sys.executable, "train.py"]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    run = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    time.sleep(seconds)
    everything = {process.pid for process in psutil.Process(run.pid).children(recursive=True)}
    everything |= {pid for run_folder in scratch.iterdir() for pid in marked(str(run_folder))}
    for pid in (run.pid, *everything):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.wait()


def _wrong(folder: Path) -> list[str]:
    """What is not as the real training, and nothing else, left it."""
    wrong = []
    numbers = (folder / "log.txt").read_text().split()[:-1]
    if numbers != [str(number) for number in range(1, len(numbers) + 1)]:
        wrong.append("log.txt")
    for path in (folder / "out").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.suffix == ".pt" and path.read_text()[:4] not in {"real", ""}:  # empty: it is being written
                wrong.append(path.name)
    steps = len([path for path in (folder / "out").iterdir() if path.name.startswith("step")])
    if steps < min(50, len(numbers)):
        wrong.append(f"{50 - steps} checkpoints")
    if (folder / "precious.txt").read_text() != "mine":
        wrong.append("precious.txt")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8, help="of processes, for the rate")
    parser.add_argument("--seconds", type=float, default=8.0, help="that each side trains in a pair")
    parser.add_argument("--rounds", type=int, default=40, help="of starts")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--sources", type=Path, help="see benchmarks.real_scripts; then only scripts are measured")
    parser.add_argument("--work", type=Path, default=Path("real"), help="where they run")
    parser.add_argument("--only", default="", help="names of scripts")
    asked = parser.parse_args(arguments)
    if asked.sources is not None:
        tuned = scripts(asked.sources, asked.work, [name for name in asked.only.split(",") if name])
        print(f"written to {save('your_files_scripts', tuned)}")
        return int(any(one["status"] or one["changed"] for rows in tuned.values() for one in rows.values()))
    read = {kind: reads(kind, asked.rounds // 4) for kind in ("photos", "raw")}
    for kind, one in read.items():
        low, high = one["ci95"]
        print(f"{kind}: samples read a second inside ÷ outside {one['ratio']:.3f} ({low:.3f} – {high:.3f})", flush=True)
    rate = {kind: rates(kind, asked.pairs, asked.seconds) for kind in ("photos", "raw")}
    for kind, one in rate.items():
        low, high = one["ci95"]
        print(f"{kind}: rate inside ÷ outside {one['ratio']:.3f} ({low:.3f} – {high:.3f})", flush=True)
    start = starts(asked.rounds)
    print(f"entering adds {1000 * start['added_seconds']:.0f} ms to a start", flush=True)
    harm = adversary()
    for row, one in harm.items():
        print(
            f"{row}: {one['changed']} of {one['cases']} changed a file, {one['succeeded']} went on as outside",
            flush=True,
        )
    killed = kills(asked.kills)
    print(f"{len(killed['lost'])} of {killed['kills']} kills lost or changed a file", flush=True)
    figures = {"read": read, "rate": rate, "start": start, "adversary": harm, "kills": killed}
    print(f"written to {save('your_files', figures)}")
    low, high = rate["photos"]["ci95"]
    holds = low <= 1 + RATE_GOAL and high >= 1 - RATE_GOAL
    holds &= start["added_seconds"] <= START_GOAL_SECONDS and not killed["lost"]
    return int(not holds or any(one["changed"] for one in harm.values()))


if __name__ == "__main__":
    sys.exit(main())
