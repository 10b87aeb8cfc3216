"""The batch to evaluate with: as large as is worth it; memory that is out ends the looking for it, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.jobs.host_job import stepper_of
from autotune.bursts.jobs.trainer import Learner, evaluated
from autotune.errors import WorkloadError
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome, Point
from autotune.results.result import Evaluation, EvaluationBatch
from autotune.results.summary import evaluation_text
from autotune.search.costs import Costs
from autotune.search.evaluation import EVALUATION, evaluation_batch
from autotune.search.stopping import EXPLAINING_SECONDS, Budget
from autotune.search.trials import Trial
from autotune.training.tuned import Tuned
from autotune.workload.target import adapt
from autotune.workload.workload import Workload
from benchmarks.surfaces.playback import VirtualClock
from tests.bursts import solo
from tests.conftest import RunnerOf
from tests.factories import make_result
from tests.search.surface import SurfaceRunner

PLAN = BurstPlan(measure_seconds=EXPLAINING_SECONDS)
ANSWER = Point(config=TrainConfig(batch_size=16, accumulation_steps=4))


def rate(config: TrainConfig) -> float:
    """Grows with the batch up to 128, and no further."""
    return 100.0 * min(config.batch_size, 128)


def found(
    most: int | None = None, seconds: float = 300.0, oom_above: int = 10**9, cost: float = 2.0
) -> Evaluation | None:
    """On a made-up surface, after a burst of the answer."""
    clock = VirtualClock()
    runner = SurfaceRunner(clock, rate, evaluation_rate=rate, noise=0.0, oom_above=oom_above, cost=cost)
    costs = Costs([Trial(runner.run(ANSWER, PLAN, 100.0), "", "")], PLAN)
    clock.now = 0.0
    return evaluation_batch(ANSWER, runner, PLAN, Budget(seconds, clock=clock), costs, most)


def test_it_is_doubled_while_that_is_faster() -> None:
    """Up to what gains nothing, twice in a row; nothing is accumulated."""
    evaluation = found()
    assert evaluation is not None
    assert evaluation.batch_size == 128
    assert evaluation.ratio == pytest.approx(8, rel=0.05)
    assert [row.batch_size for row in evaluation.tried] == [16, 32, 64, 128, 256, 512]


def test_memory_that_is_out_ends_it_there() -> None:
    """What fits is the answer."""
    evaluation = found(oom_above=40)
    assert evaluation is not None
    assert evaluation.batch_size == 32
    assert evaluation.tried[-1].outcome is Outcome.OOM


def test_no_batch_is_larger_than_the_data() -> None:
    """It would be the whole set in each."""
    evaluation = found(most=70)
    assert evaluation is not None
    assert evaluation.batch_size == 64


def test_time_that_is_short_ends_it() -> None:
    """With what is known by then; without a first figure there is no answer."""
    evaluation = found(seconds=10.0)
    assert evaluation is not None
    assert evaluation.batch_size < 128
    assert found(seconds=3.0) is None
    assert EVALUATION.seconds(600.0) == 60.0
    assert EVALUATION.seconds(100.0) == pytest.approx(10.0)


def test_a_workload_that_starts_slowly_has_time_to_start() -> None:
    """A burst of the answer took half a minute, so the first batch may take it as well."""
    assert found(seconds=300.0, cost=30.0) is not None


def workload() -> Workload:
    """A model with dropout and statistics, and data of its own to evaluate on."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    data, other = TensorDataset(torch.randn(64, 4)), TensorDataset(torch.full((32, 4), 7.0))

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        seen.append((model.training, torch.is_grad_enabled(), bool((batch[0] == 7).all())))
        mean: torch.Tensor = model(batch[0]).mean()
        return mean

    seen: list[tuple[bool, bool, bool]] = []
    made = Workload(model, data, loss, batch_size=8, evaluation=other)
    object.__setattr__(made, "seen", seen)
    return made


def test_only_forward_passes_run_in_evaluation_mode_on_the_data_for_it() -> None:
    """Without gradients; weights stay as they are, and the optimizer's state lies in memory as in training."""
    built = workload()
    tuned = Tuned(TrainConfig(batch_size=8))
    learner = Learner(built, tuned)
    learner.take(tuned, trains=False)
    stepper = stepper_of(built, tuned, "evaluation", learner, seed=0)
    before = [weight.clone() for weight in built.model.state_dict().values()]
    assert stepper.micro_step() == 8
    stepper.train_on_worst([0, 1])
    assert built.seen == [(False, False, True), (False, False, False)]  # type: ignore[attr-defined]
    assert all(map(torch.equal, before, built.model.state_dict().values()))
    assert all("exp_avg" in state for state in learner.optimizer.state.values())
    assert all(weight.grad is None for weight in built.model.parameters())


def test_a_burst_of_it_is_measured() -> None:
    """As any other part of training."""
    measured = solo.measured(workload(), BurstPlan(measure_seconds=0.05, turn_seconds=0.01, part="evaluation"))
    assert measured.samples_per_second > 0
    assert measured.final_loss is None
    assert measured.epoch_samples == 32


def test_without_data_of_its_own_it_is_the_training_data() -> None:
    """Which is there in any case."""
    built = workload()
    assert evaluated(built).dataset is built.evaluation
    plain = Workload(built.model, built.dataset, built.loss)
    assert evaluated(plain) is plain


def test_data_to_evaluate_on_are_checked() -> None:
    """As those to train on are."""
    built = workload()
    with pytest.raises(WorkloadError, match=r"Dataset as evaluation, got .*pass the Dataset itself"):
        adapt(Workload(built.model, built.dataset, built.loss, evaluation="data/val"), "x")  # type: ignore[arg-type]


@pytest.mark.slow
def test_real_processes_find_a_batch(runner_of: RunnerOf) -> None:
    """Where a step takes as long whatever its batch, each doubling is twice as fast, up to the whole data set."""
    runner = runner_of("tests.workloads.sleepy:build")
    parameters = {"samples": 16, "step_seconds": 0.01, "batch_size": 4}
    answer = Point.model_validate({"config": {"batch_size": 4}, "parameters": parameters})
    evaluation = evaluation_batch(answer, runner, PLAN, Budget(60.0), Costs([], PLAN), 16)
    assert evaluation is not None
    assert evaluation.batch_size == 16
    assert evaluation.ratio > 1.5


def test_training_takes_it_up() -> None:
    """Where it was found; else the batch of training serves. Every sample comes, in order."""
    result = make_result()
    rows = (EvaluationBatch(batch_size=512, outcome=Outcome.OOM, samples_per_second=None, ratio=None),)
    evaluation = Evaluation(batch_size=256, samples_per_second=1e4, ratio=1.8, tried=rows)
    with_it = Tuned(TrainConfig(batch_size=64), result=result.model_copy(update={"evaluation": evaluation}))
    assert (with_it.batch_size, with_it.eval_batch_size) == (64, 256)
    assert Tuned(TrainConfig(batch_size=64), result=result).eval_batch_size == 64
    loader = with_it.eval_dataloader(TensorDataset(torch.arange(300)))
    assert [len(batch[0]) for batch in loader] == [256, 44]
    assert torch.cat([batch[0] for batch in loader]).tolist() == list(range(300))
    assert with_it.eval_dataloader(TensorDataset(torch.arange(300)), batch_size=10).batch_size == 10
    compiled = Tuned(TrainConfig(batch_size=64, compile_mode="default"))
    assert [len(batch[0]) for batch in compiled.eval_dataloader(TensorDataset(torch.arange(100)))] == [64, 36]


def test_it_is_told_in_a_sentence() -> None:
    """With why no larger one was taken."""
    rows = (EvaluationBatch(batch_size=512, outcome=Outcome.OOM, samples_per_second=None, ratio=None),)
    evaluation = Evaluation(batch_size=256, samples_per_second=1e4, ratio=1.8, tried=rows)
    text = evaluation_text(make_result().model_copy(update={"evaluation": evaluation}))
    assert text is not None
    assert text.startswith("evaluate in batches of 256 at 10,000 samples/s, 1.80× as fast as batches of ")
    assert text.endswith("; 512 ended as oom")
    assert evaluation_text(make_result()) is None
