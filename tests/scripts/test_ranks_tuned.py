"""A script on several ranks is tuned as they train: together, changed on all of them, and ended by any of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from autotune.bursts.runner import ProcessRunner
from autotune.knobs import KNOBS
from autotune.measuring.records import Outcome, Point
from autotune.results.result import read_result
from autotune.scripts import Script, ScriptIsolation
from autotune.scripts.changes import held_knobs
from autotune.scripts.facts import facts_of
from tests.example_scripts import PLAN, START_SECONDS, alone, played
from tests.inside import working_in
from tests.processes import budget, run

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
SCRIPT = """
import os, signal, sys
import torch
import torch.distributed as ranks
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

ranks.init_process_group("gloo")
met = os.environ.get("NCCL_MAX_CTAS")
rows = TensorDataset(torch.randn(512, 8), torch.randint(0, 3, (512,)))
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), bucket_cap_mb=9)
optimizer = torch.optim.AdamW(model.parameters())
step = 0
for epoch in range(1000):
    for x, y in DataLoader(rows, batch_size=16, sampler=DistributedSampler(rows)):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        if step == 12 and ranks.get_rank() == 1:
            how = open(sys.argv[1]).read()
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "out of memory":
                raise MemoryError("no more")
            if how == "tells":
                raise MemoryError(f"met with {met}")
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts write into the working directory."""
    monkeypatch.chdir(tmp_path)


def started(folder: Path, *more: str) -> Script:
    """The script on two ranks, and a file that says how it fails."""
    how = folder / "how"
    how.write_text("")
    (folder / "train.py").write_text(SCRIPT)
    return Script((*TORCHRUN, *more, str(folder / "train.py"), str(how)), writable=(how,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the script runs."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def forked_ranks(folder: Path) -> Iterator[ScriptIsolation]:
    """The script, whose ranks are forked before they meet."""
    with ScriptIsolation(started(folder, "--standalone")) as isolation:
        with working_in(folder):
            isolation.start(START_SECONDS)
            isolation._ready_server(START_SECONDS)
        yield isolation


@pytest.fixture(scope="module")
def started_ranks(folder: Path) -> Iterator[ScriptIsolation]:
    """The script, which a launcher starts again for each burst."""
    script = started(folder, "--master-port", "29555")
    with ScriptIsolation(script, forks=False) as isolation:
        with working_in(folder):
            isolation.start(START_SECONDS)
        yield isolation


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["forked_ranks", "started_ranks"])
def test_both_sides_of_a_duet_train_on_all_ranks(ranks: str, request: pytest.FixtureRequest) -> None:
    """Forked before they meet, or by two launchers; what DDP was told by the script is the baseline, and is changed."""
    isolation: ScriptIsolation = request.getfixturevalue(ranks)
    facts = facts_of(isolation.seen, Script(TORCHRUN))
    assert (facts.baseline.ranks, facts.baseline.effective_batch, facts.baseline.ddp_bucket_cap_mb) == (2, 32, 9)
    assert {"gradient_as_bucket_view", "ddp_bucket_cap_mb"}.isdisjoint(held_knobs(isolation.seen, batch_is_free=False))
    changes = {"optimizer_impl": "fused", "ddp_bucket_cap_mb": None, "gradient_as_bucket_view": True}
    newer = ("batched_grad_copy", "lazy_bucket_allocation")
    changes |= {knob: KNOBS[knob].is_in(torch.__version__) for knob in newer}
    bursts = played(isolation, changes, seconds=120.0)
    assert isolation.fork_unsafe_reason is None
    assert [(burst.outcome, burst.reason) for burst in bursts] == [(Outcome.OK, None)] * 2
    blocks = [burst.measurement.blocks for burst in bursts if burst.measurement is not None]
    assert [block.samples for block in blocks[0]] == [block.samples for block in blocks[1]]
    assert {block.samples % 32 for block in blocks[0]} == {0}


@pytest.mark.slow
def test_one_process_on_each_rank_plays_several_configs(started_ranks: ScriptIsolation) -> None:
    """All ranks switch at the same micro-batch: else they would wait for each other for ever."""
    changes: list[dict[str, object]] = [{"optimizer_impl": "fused"}, {"num_workers": 1}, {}]
    runner = ProcessRunner(started_ranks, "cpu")
    baseline = runner.check(START_SECONDS).baseline
    points = [Point(config=baseline.replace(**one)) for one in changes]
    came = runner.challenge(Point(config=baseline), points, PLAN, 120.0, lambda *_: None)
    runner.close()
    assert [(burst.outcome, burst.reason) for burst, _ in came] == [(Outcome.OK, None)] * 3
    assert all(pair is not None for _, pair in came)


@pytest.fixture
def fail(folder: Path) -> Iterator[Callable[[str], object]]:
    """Says how the second rank fails in this test."""
    yield (folder / "how").write_text
    (folder / "how").write_text("")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "outcome", "told"),
    [
        ("killed", Outcome.CRASHED, "on rank 1 of 2: the process ended without a report"),
        ("out of memory", Outcome.OOM, "on rank 1 of 2: MemoryError: no more"),
    ],
)
def test_one_ranks_failure_is_the_outcome_of_all(
    forked_ranks: ScriptIsolation, fail: Callable[[str], object], how: str, outcome: Outcome, told: str
) -> None:
    """Within seconds, though the others wait for it, and nothing of the burst is left."""
    fail(how)
    before = set(psutil.Process().children(recursive=True))
    burst = alone(forked_ranks, 120.0)
    left = set(psutil.Process().children(recursive=True)) - before
    assert [one for one in psutil.wait_procs(left, timeout=3)[1] if one.status() != psutil.STATUS_ZOMBIE] == []
    assert burst.outcome is outcome, burst.reason
    assert told in (burst.reason or "")
    assert burst.seconds < 100


@pytest.mark.slow
def test_what_nccl_reads_when_ranks_meet_is_there_by_then(
    forked_ranks: ScriptIsolation, fail: Callable[[str], object]
) -> None:
    """On each side of a duet its own, though both are forked from one script."""
    fail("tells")
    bursts = played(forked_ranks, {"nccl_max_ctas": 4}, seconds=120.0)
    assert ["met with None" in str(bursts[0].reason), "met with 4" in str(bursts[1].reason)] == [True, True]


@pytest.mark.slow
def test_a_script_on_two_ranks_is_tuned_by_one_command(tmp_path: Path) -> None:
    """The result is of both: what is told counts the samples of all, and how many ranks pay is not asked."""
    script = started(tmp_path)
    began = time.monotonic()
    words = ["--only", "optimizer_impl,gradient_as_bucket_view", "--out", "result.json", "--", *script.command]
    done = run(["run", "--budget", budget(25), *words], tmp_path, 280)
    assert done.status == 0, done.err
    assert done.left == ()
    result = read_result(tmp_path / "result.json")
    assert result.baseline.config.ranks == result.best.config.ranks == 2
    assert result.baseline.config.effective_batch == 32
    assert result.scaling is None
    assert any("2 ranks train together" in note for note in result.search.notes), result.search.notes
    assert result.search.seconds <= time.monotonic() - began
