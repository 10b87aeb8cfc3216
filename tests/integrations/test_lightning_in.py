"""A LightningModule with its data is tuned as it stands: Lightning's own demos, through real bursts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("lightning")

from lightning.pytorch import Callback, Trainer

from autotune.bursts.jobs.look_job import check_workload
from autotune.errors import WorkloadError
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome
from tests.integrations.bursts import check_and_run, of, train
from tests.integrations.models import compiling, operators
from tests.integrations.workloads import lightning_built as built

HERE = "tests.integrations.workloads.lightning_built"

pytestmark = pytest.mark.filterwarnings("ignore:.*(many workers|GPU available|`max_epochs`)")


@pytest.mark.parametrize("name", ["boring", pytest.param("transformer", marks=pytest.mark.slow)])
def test_a_demo_is_checked_and_run_in_bursts(name: str) -> None:
    """Lightning's own models pass the check and train in processes of their own, by their baseline and otherwise."""
    facts, bursts = check_and_run(f"{HERE}:{name}", 8)
    assert [burst.outcome for burst in bursts] == [Outcome.OK, Outcome.OK], [burst.reason for burst in bursts]
    assert facts.samples == 64
    assert facts.has_attention == (name == "transformer")


def test_a_burst_takes_the_steps_that_lightning_takes() -> None:
    """From the same weights on the same batches, the weights come out as ``Trainer.fit`` leaves them."""
    (in_burst, _), (in_lightning, _) = take_three_steps()
    torch.testing.assert_close(in_burst, in_lightning)


def test_gradients_live_as_long_as_lightnings() -> None:
    """Until the next forward pass is done: they are part of the memory that it takes."""
    (_, alive), (_, alive_there) = take_three_steps()
    assert alive == alive_there == [False, *[True] * 5]


def take_three_steps() -> Iterator[tuple[torch.Tensor, list[bool]]]:
    """In a burst and by ``Trainer.fit``: the weights, and whether there were gradients at each forward pass."""
    words = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_steps=3, accumulate_grad_batches=2, enable_model_summary=False, **words)
    ways = [
        lambda module, data: train(of((module, data)), 3, accumulation_steps=2),
        lambda module, data: trainer.fit(module, datamodule=data),
    ]
    for way in ways:
        torch.manual_seed(0)
        module, data = built.boring()
        alive: list[bool] = []

        def note(layer: Any, _: Any, alive: list[bool] = alive) -> None:
            if layer.training:  # Lightning validates a little first
                alive.append(layer.weight.grad is not None)

        module.layer.register_forward_pre_hook(note)
        way(module, data)
        yield module.layer.weight, alive


def test_the_baseline_is_lightnings_default() -> None:
    """The loader's batch size and nothing else; the optimizer is the module's own."""
    workload = of(built.boring())
    assert workload.baseline_config == TrainConfig(batch_size=1)
    assert isinstance(workload.make_optimizer(), torch.optim.SGD)
    assert workload.clip_grad_norm is None


def test_a_trainer_states_the_baseline() -> None:
    """Accumulation, precision and clipping are those of the Trainer that is returned too."""
    workload = of(built.transformer())
    assert workload.baseline_config == TrainConfig(batch_size=4, accumulation_steps=2, precision="bf16")
    assert workload.clip_grad_norm == 0.5
    assert (workload.sampler, workload.name) == (None, "Transformer")


def test_a_module_that_loads_itself_needs_no_data() -> None:
    """Its own `train_dataloader` is used."""
    workload = of(built.boring_alone())
    assert len(workload.dataset) == 64  # type: ignore[arg-type]
    train(workload, 1)


def test_an_iterable_dataset_is_trained_on() -> None:
    """A DataModule without lengths is checked like any."""
    assert check_workload(of(built.boring_stream()), "train:build", "cpu").samples is None


def test_the_order_of_samples_is_the_loaders() -> None:
    """A loader that does not shuffle is not shuffled."""
    assert isinstance(of(built.boring()).sampler, torch.utils.data.SequentialSampler)


def test_a_step_may_ask_its_trainer() -> None:
    """The trainer, the schedule's length, the optimizer, the logger: each has an answer, and nothing is logged."""
    trainer = train(of(built.curious()), 2)
    assert isinstance(trainer.optimizer, torch.optim.AdamW)
    assert float(trainer.loss) > 0


def test_learning_rates_follow_the_modules_schedules() -> None:
    """After each step, or after the baseline's epoch: where a rate would only fall in time, no burst may diverge."""
    curious = train(of(built.curious()), 1).optimizer
    rate = curious.param_groups[0]["lr"]
    assert rate > curious.param_groups[0]["initial_lr"]
    boring = train(of(built.boring()), 63)
    assert boring.optimizer.param_groups[0]["lr"] == 0.1
    boring.step()
    assert boring.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_each_optimizer_is_a_new_one() -> None:
    """Bursts that compare configs in one process train with state of their own."""
    workload = of(built.curious())
    assert workload.make_optimizer() is not workload.make_optimizer()


def test_the_step_is_compiled_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """`training_step`, not `forward` alone, is one graph, though it logs."""
    workload = of((built.Logging(), built.BoringDataModule()))
    with compiling(monkeypatch) as graphs:
        train(workload, 2, compile_mode="default")
    assert len(graphs) == 1
    assert "linear" in operators(graphs)
    assert "mse_loss" in operators(graphs)


def test_frozen_parts_stay_in_evaluation() -> None:
    """Lightning leaves the modules' modes to the user."""
    module = built.Freezing()
    before = module.frozen[1].running_mean.clone()
    train(of((module, built.BoringDataModule())), 2)
    assert not module.frozen.training
    torch.testing.assert_close(module.frozen[1].running_mean, before)


def test_the_data_is_set_up_and_its_hooks_run() -> None:
    """In Lightning's order; batches are changed outside of autocast, as Lightning does."""
    data = built.Augmenting()
    workload = of((built.BoringModel(), data))
    train(workload, 1, precision="bf16")
    assert data.calls == ["prepare_data", "setup fit", "augment"]


def test_the_loaders_settings_are_the_baseline() -> None:
    """Workers, prefetching and persistence; what bursts do not do is noted."""
    workload = of((built.BoringModel(), built.Augmenting()))
    expected = TrainConfig(batch_size=8, num_workers=2, prefetch_factor=3, persistent_workers=True)
    assert workload.baseline_config == expected
    assert workload.notes == ("drop_last=True of the train loader: a last incomplete batch is trained on",)


def test_hooks_that_bursts_leave_out_are_noted() -> None:
    """Hooks around a step, callbacks of the user's, and clipping by value."""

    class Mine(Callback):
        """A callback."""

    trainer = built.with_trainer(callbacks=[Mine()], gradient_clip_val=0.1, gradient_clip_algorithm="value")[2]
    workload = of((built.Hooked(), built.BoringDataModule(), trainer))
    assert workload.notes == (
        "gradient_clip_algorithm='value' of the Trainer",
        "the callback Mine",
        "on_train_batch_end() of Hooked",
    )
    assert workload.clip_grad_norm is None


def test_a_module_can_be_an_ordinary_model() -> None:
    """(model, dataset, loss) stays what it is, whatever the model's class."""

    def loss(model: Any, batch: Any) -> torch.Tensor:
        return model(batch).square().mean()

    module = built.BoringModel()
    workload = of((module, built.RandomDataset(32, 64), loss))
    assert (workload.model, workload.loss) == (module, loss)


def test_the_other_package_is_known_too() -> None:
    """``pytorch_lightning`` has classes of its own."""
    pytest.importorskip("pytorch_lightning")
    from pytorch_lightning.demos import boring_classes

    workload = of((boring_classes.BoringModel(), boring_classes.BoringDataModule()))
    train(workload, 1)
    assert workload.baseline_config == TrainConfig(batch_size=1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("manual", "got ManualOptimBoringModel with automatic_optimization = False; return an autotune.Workload"),
        ("adversarial", "from configure_optimizers(), got 2 optimizers; return an autotune.Workload"),
        ("resting", "expected one optimizer from configure_optimizers(), got None"),
        ("iterating", "got Iterating.training_step(dataloader_iter); let it take the batch"),
        (
            "several_loaders",
            "expected one torch DataLoader from IterableBoringDataModule.train_dataloader(), got a list",
        ),
        ("grouped", "got one with a SequenceSampler; give the DataLoader batch_size="),
        ("no_loader", "`train_dataloader` must be implemented"),
        ("unready", "making a Workload from its return value raised: FileNotFoundError: no scans here; fix it"),
        ("dataset", "a train DataLoader beside the LightningModule, got a RandomDataset"),
        ("four", "got 3 values; return (module, datamodule)"),
        ("double", "one of the precisions 32-true, bf16-mixed, 16-mixed, got 64-true"),
    ],
)
def test_what_cannot_be_tuned_is_told(name: str, words: str) -> None:
    """The target, what was expected, what it got, and what to do."""
    with pytest.raises(WorkloadError) as caught:
        of(built.MISTAKES[name]())
    assert str(caught.value).startswith("train:build: ")
    assert words in str(caught.value)
