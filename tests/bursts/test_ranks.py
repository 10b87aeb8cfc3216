"""Several ranks that train together: one rate, one stream of samples, one outcome."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest
import torch

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan, Request
from autotune.errors import WorkloadError
from autotune.knobs import KNOBS
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome, Point
from autotune.timing.protocol import Command
from tests.conftest import RunnerOf

PLAN = BurstPlan(measure_seconds=0.4)
SECONDS = 60.0
SHARED = "tests.workloads.shared:build"
DDP = {"ddp_bucket_cap_mb": 1, "gradient_as_bucket_view": True, "static_graph": True}


def pair(batch_size: int, accumulation_steps: int = 1, **knobs: object) -> TrainConfig:
    """A config of two ranks."""
    return TrainConfig(ranks=2, batch_size=batch_size, accumulation_steps=accumulation_steps, **knobs)  # type: ignore[arg-type]


def test_a_step_holds_the_samples_of_all_ranks(runner_of: RunnerOf) -> None:
    """Blocks count in the samples of all; what DDP is told does not keep it from training, accumulating or not."""
    points = [Point(config=pair(16)), Point(config=pair(4, 4, **DDP))]
    for burst in runner_of(SHARED).play(points, PLAN, SECONDS):
        assert burst.outcome is Outcome.OK, burst.reason
        assert burst.measurement is not None
        assert {block.samples % 32 for block in burst.measurement.blocks} == {0}
        assert burst.measurement.epoch_samples == 96


def test_both_sides_of_a_duet_train_the_same_blocks_whatever_their_ranks(runner_of: RunnerOf) -> None:
    """One process with a batch of 16 reads what two with 8 each read."""
    points = [Point(config=TrainConfig(batch_size=16)), Point(config=pair(8))]
    bursts = runner_of(SHARED).play(points, PLAN, SECONDS)
    counts = [[block.samples for block in burst.measurement.blocks] for burst in bursts if burst.measurement]
    assert len(counts) == 2
    assert counts[0] == counts[1]


def test_a_split_model_plays_against_one_that_each_rank_has(runner_of: RunnerOf) -> None:
    """The same blocks; the optimizer follows the parts, and gradients that are accumulated are exchanged each time."""
    newer = {knob: KNOBS[knob].is_in(torch.__version__) for knob in ("fsdp_own_group", "fsdp_keep_storage")}
    points = [Point(config=pair(8)), Point(config=pair(4, 2, strategy="fsdp", **newer))]
    bursts = runner_of(SHARED).play(points, PLAN, SECONDS)
    assert [(burst.outcome, burst.reason) for burst in bursts] == [(Outcome.OK, None)] * 2
    counts = [[block.samples for block in burst.measurement.blocks] for burst in bursts if burst.measurement]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("samples", [96, 90])
def test_ranks_share_out_the_stream_that_one_process_reads(runner_of: RunnerOf, tmp_path: Path, samples: int) -> None:
    """The batches of both together are those of one process, in the same order, until data that do not divide end."""
    read: dict[str, list[int]] = {}
    for name, config in (("alone", TrainConfig(batch_size=16)), ("together", pair(8))):
        log = tmp_path / name
        log.mkdir()
        point = Point(config=config, parameters={"log": str(log), "samples": samples})
        assert runner_of(SHARED).run(point, PLAN, SECONDS).outcome is Outcome.OK
        for file in log.iterdir():
            read[f"{name} {file.name}"] = [int(line) for line in file.read_text().split()]
    alone, first, second = (read[name] for name in ("alone rank0", "together rank0", "together rank1"))
    together = [index for both in zip(first, second, strict=False) for index in both]
    whole = min(len(alone), len(together), samples // 16 * 16)
    for batch in range(0, whole, 16):
        assert sorted(alone[batch : batch + 16]) == sorted(together[batch : batch + 16])


def test_a_killed_rank_ends_its_host_at_once_and_leaves_nothing(runner_of: RunnerOf, forkserver: Isolation) -> None:
    """From outside, in the middle of a duet: within seconds, told as what it was, and no process is left."""
    runner_of(SHARED)
    live = forkserver.open(
        Request(job="host", target=SHARED, device="cpu", plan=PLAN, point=Point(config=pair(8))), SECONDS
    )
    assert forkserver.wait(live, time.monotonic() + SECONDS) is not None  # it is ready
    tree = live.processes()
    launcher = next(process for process in tree if process.pid == live.pid)
    ranks = launcher.children()
    assert len(ranks) == 2
    forkserver.command(live, Command(action="train", start=0, until=10**9))
    time.sleep(0.3)
    began = time.monotonic()
    ranks[1].send_signal(signal.SIGKILL)
    ended = forkserver.end(live, time.monotonic() + SECONDS)
    assert time.monotonic() - began < 5
    assert ended.message is not None
    assert "on rank 1 of 2: the process was killed by SIGKILL" in ended.message["reason"]
    assert not [process for process in tree if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_a_stopped_host_stops_all_its_ranks_and_goes_on(runner_of: RunnerOf, forkserver: Isolation) -> None:
    """What takes turns must take nothing in its partner's; what it was stopped in the middle of goes on."""
    runner_of(SHARED)
    point = Point(config=pair(8, num_workers=1))
    live = forkserver.open(Request(job="host", target=SHARED, device="cpu", plan=PLAN, point=point), SECONDS)
    assert forkserver.wait(live, time.monotonic() + SECONDS) is not None
    forkserver.command(live, Command(action="train", start=0, until=960))
    live.stop()
    time.sleep(3.0)  # longer than a rank may be stopped by somebody else; on a busy machine the signal takes a moment
    # Whoever has ended takes nothing either.
    assert {process.status() for process in live.processes()} - {psutil.STATUS_ZOMBIE} == {psutil.STATUS_STOPPED}
    assert len(live.processes()) >= 3
    live.resume()
    event = forkserver.wait(live, time.monotonic() + SECONDS)
    assert event is not None
    assert event["lap"]["samples"] >= 960
    forkserver.command(live, Command(action="leave"))
    event = forkserver.wait(live, time.monotonic() + SECONDS)
    assert event is not None
    assert event["value"]["final_loss"] is not None
    forkserver.command(live, Command(action="end"))
    assert forkserver.end(live, time.monotonic() + SECONDS).status == 0


def test_memory_is_that_of_all_ranks(runner_of: RunnerOf) -> None:
    """On the CPU two processes take more than one."""
    one, two = (
        runner_of(SHARED).run(Point(config=config), PLAN, SECONDS).measurement
        for config in (pair(8).replace(ranks=1), pair(8))
    )
    assert one is not None
    assert two is not None
    assert (two.host_memory_bytes or 0) > (one.host_memory_bytes or 0)


@pytest.mark.parametrize(
    "knobs",
    [{"exchange_dtype": "bf16"}, {"strategy": "fsdp", "fsdp_param_dtype": "bf16", "precision": "bf16"}],
    ids=["gradients", "weights"],
)
def test_what_ranks_round_is_compared_with_exact_ranks(runner_of: RunnerOf, knobs: dict[str, object]) -> None:
    """The numerics check trains on both: one alone exchanges nothing, and would call the coarsest exchange exact."""
    agreement = runner_of(SHARED).agreement(Point(config=pair(8, **knobs)), 4, SECONDS)
    assert 0.99 < agreement.candidate.cosine < 1 - 1e-9
    assert agreement.candidate.losses == pytest.approx(agreement.reference.losses, rel=0.05)


def test_a_check_of_several_ranks_tells_what_exchanging_takes(runner_of: RunnerOf) -> None:
    """Much where there is much to exchange and little to compute; the baseline is that of all ranks."""
    facts = runner_of("tests.workloads.shared:build_heavy", ranks=2).check(SECONDS)
    assert facts.baseline.ranks == 2
    assert facts.baseline.effective_batch == 4
    assert facts.communication_fraction is not None
    assert facts.communication_fraction > 0.1


def test_parameters_without_a_gradient_are_seen_and_ddp_is_told(runner_of: RunnerOf) -> None:
    """Else it would wait for gradients that never come."""
    runner = runner_of("tests.workloads.shared:build_partly_used", ranks=2)
    facts = runner.check(SECONDS)
    assert facts.unused_parameters == 2
    assert facts.baseline.find_unused_parameters
    for config in (facts.baseline, facts.baseline.replace(static_graph=True)):
        burst = runner.run(Point(config=config), PLAN, SECONDS)
        assert burst.outcome is Outcome.OK, burst.reason


def test_a_loss_that_ranks_cannot_train_is_refused_by_the_check(runner_of: RunnerOf) -> None:
    """Before a search begins, with the reason."""
    with pytest.raises(WorkloadError, match="no longer train the same weights"):
        runner_of("tests.faults.workloads.ranks:past_the_model", ranks=2).check(SECONDS)
