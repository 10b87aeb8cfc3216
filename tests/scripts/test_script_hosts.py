"""One process of a script plays several configs: they switch at its gate, on the same samples."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.measuring import Burst, Outcome, Pair, Point
from autotune.scripts import Script, ScriptIsolation
from tests.example_scripts import START_SECONDS
from tests.inside import working_in

PLAN = BurstPlan(measure_seconds=0.5)
IMAGES = """
import os, sys, threading
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

open("starts.txt", "a").write("started\\n")
how = open("how.txt").read()
threading.Thread(target=threading.Event().wait, daemon=True).start()
torch.manual_seed(0)
torch.set_num_threads(1)  # on two a neighbour makes single ratios of equals 0.2 to 4
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = TensorDataset(torch.randn(512, 3, 12, 12), torch.randint(0, 5, (512,)))
steps = 0
for epoch in range(100_000):
    for images, labels in DataLoader(data, batch_size=16, shuffle=True):
        loss = nn.functional.cross_entropy(model(images), labels)
        if optimizer.param_groups[0]["fused"]:
            if how == "nan":
                loss = loss * float("nan")
            if how == "raise":
                raise ValueError("no such luck")
        if how == "insists":
            torch.set_num_threads(3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss) or how == "nan"
        steps += 1
        if how == "short" and steps == 150:
            sys.exit(0)
"""
Play = Callable[..., tuple[list[Burst], list[Pair | None], int]]


@contextlib.contextmanager
def playing(folder: Path, text: str) -> Iterator[Play]:
    """Looks at a script once; then plays configs against it as it is, which goes in one of several ways.

    Returns their bursts, pairs, and how often the script has started.
    """
    for name in ("starts.txt", "how.txt"):
        text = text.replace(f'"{name}', f'"{folder / name}')
        (folder / name).write_text("")
    (folder / "train.py").write_text(text)
    command = (sys.executable, str(folder / "train.py"))
    script = Script(command, writable=(folder,))
    with working_in(folder), ScriptIsolation(script, forks=False) as isolation:
        isolation.start(START_SECONDS)
        before = set(psutil.Process().children(recursive=True))

        def play(how: str, *changes: dict[str, Any]) -> tuple[list[Burst], list[Pair | None], int]:
            (folder / "how.txt").write_text(how)
            runner, started = ProcessRunner(isolation, "cpu"), starts(folder)
            baseline = Point(config=runner.check(START_SECONDS).baseline)
            points = [Point(config=baseline.config.replace(**one)) for one in changes]
            played = runner.challenge(baseline, points, PLAN, 90.0, lambda *_: None)
            runner.close()
            _, alive = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, timeout=3)
            assert alive == []
            return [burst for burst, _ in played], [pair for _, pair in played], starts(folder) - started

        yield play


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """Plays configs of a script that trains on images."""
    with playing(tmp_path_factory.mktemp("images"), IMAGES) as play:
        yield play


def starts(folder: Path) -> int:
    """How often the script has started."""
    return (folder / "starts.txt").read_text().count("started")


@pytest.mark.slow
def test_one_process_plays_many_configs(play: Play) -> None:
    """They differ in loader, process, model and optimizer."""
    changes: list[dict[str, Any]] = [
        {"num_workers": 2, "persistent_workers": True}, {"num_threads": 2}, {"optimizer_impl": "fused"},
        {"memory_format": "channels_last"}, {"precision": "bf16"}, {"batch_size": 32},
    ]  # fmt: skip
    bursts, pairs, started = play("", *changes)
    assert [(burst.outcome, burst.reason) for burst in bursts] == [(Outcome.OK, None)] * len(changes)
    assert started == 1
    assert all(pair is not None for pair in pairs)


@pytest.mark.slow
def test_equals_in_one_process_agree(play: Play) -> None:
    """Beside another config; most intervals hold 1, since one of 95 % misses it now and then."""
    _, pairs, started = play("", {}, {"memory_format": "channels_last"}, {}, {})
    agree = [pair is not None and pair.ci95.low <= 1 <= pair.ci95.high for pair in (pairs[0], *pairs[2:])]
    assert (agree.count(True) >= 2, started) == (True, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "changes", "outcome", "reason", "started"),
    [
        ("nan", {"optimizer_impl": "fused"}, Outcome.INVALID, "the loss became nan", 1),
        ("raise", {"optimizer_impl": "fused"}, Outcome.CRASHED, "ValueError: no such luck", 2),
        ("insists", {"num_threads": 2}, Outcome.UNSUPPORTED, "num_threads did not come into effect", 1),
    ],
)
def test_a_player_that_fails_is_out_and_the_others_go_on(
    play: Play, how: str, changes: dict[str, Any], outcome: Outcome, reason: str, started: int
) -> None:
    """What it spoils is put back; what ends the process costs another start, without it."""
    bursts, pairs, has_started = play(how, changes, {"memory_format": "channels_last"})
    assert [burst.outcome for burst in bursts] == [outcome, Outcome.OK], [burst.reason for burst in bursts]
    assert reason in (bursts[0].reason or "")
    assert bursts[0].without_effect == (("num_threads",) if how == "insists" else ())
    assert pairs[1] is not None
    assert has_started == started


@pytest.mark.slow
def test_a_script_that_ends_early_begins_again_with_all_players(play: Play) -> None:
    """Each goes on where it was in the stream of samples."""
    bursts, pairs, started = play("short", {"memory_format": "channels_last"}, {"num_threads": 2})
    assert [(burst.outcome, burst.reason) for burst in bursts] == [(Outcome.OK, None)] * 2
    assert all(pair is not None and pair.blocks > 2 for pair in pairs)
    assert started > 1


SAMPLES = IMAGES.replace(
    "torch.randn(512, 3, 12, 12)", "torch.arange(512.0).reshape(-1, 1, 1, 1).expand(512, 3, 12, 12)"
)
SAMPLES = SAMPLES.replace("    loss = ", "    note(images)\n        loss = ", 1).replace(
    "torch.manual_seed(0)",
    """torch.manual_seed(0)
def note(images):
    name = "fused" if optimizer.param_groups[0]["fused"] else "plain"
    open("starts.txt" + name, "a").write(" ".join(str(int(image[0, 0, 0])) for image in images) + "\\n")
""",
)


@pytest.mark.slow
def test_players_train_the_same_samples_in_the_same_order(tmp_path: Path) -> None:
    """Each from its own loader, whatever its batch size: their last samples are the same."""
    changes = {"optimizer_impl": "fused", "batch_size": 32, "num_workers": 1}
    with playing(tmp_path, SAMPLES) as play:
        bursts, _, started = play("", changes)
    assert [(burst.outcome, started) for burst in bursts] == [(Outcome.OK, 1)]
    plain, fused = ((tmp_path / f"starts.txt{name}").read_text().split() for name in ("plain", "fused"))
    stretch = plain[-256:-64]  # one may have trained a batch more than the other in the end
    assert f" {' '.join(stretch)} " in f" {' '.join(fused)} "
