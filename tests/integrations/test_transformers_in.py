"""A ``transformers.Trainer`` is tuned as it stands: small models of the package's own, through real bursts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from autotune.bursts.jobs.look_job import check_workload
from autotune.errors import WorkloadError
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome
from autotune.workload.target import load_workload
from tests.integrations.bursts import check_and_run, of, train
from tests.integrations.models import compiling, operators
from tests.integrations.workloads import transformers_built as built

HERE = "tests.integrations.workloads.transformers_built"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_trainer_is_checked_and_run_in_bursts(name: str) -> None:
    """It passes the check and trains in processes of its own, by its baseline and otherwise."""
    facts, bursts = check_and_run(f"{HERE}:{name}", 2)
    assert [burst.outcome for burst in bursts] == [Outcome.OK, Outcome.OK], [burst.reason for burst in bursts]
    assert (facts.samples, facts.has_attention) == (64, True)
    assert facts.fixed_shapes == (name == "gpt2")


def test_a_burst_takes_the_steps_that_the_trainer_takes() -> None:
    """From the same weights on the same batches, the weights come out as ``train()`` leaves them."""
    changes = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 3, "learning_rate": 0.01,
        "lr_scheduler_type": "constant", "train_sampling_strategy": "sequential", "max_grad_norm": 0.1,
    }  # fmt: skip
    weights = built.generator().state_dict()

    def make() -> Any:
        model = built.generator()
        model.load_state_dict(weights)
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        return built.gpt2(model=model, **changes)

    reference, trainer = make(), make()
    train(of(trainer), 3)
    reference.train()
    torch.testing.assert_close(
        trainer.model.transformer.h[0].mlp.c_fc.weight, reference.model.transformer.h[0].mlp.c_fc.weight
    )


def test_the_arguments_are_the_baseline() -> None:
    """Batch, accumulation, precision and clipping; the optimizer is the Trainer's own, with its groups."""
    workload = of(built.bert())
    assert workload.baseline_config == TrainConfig(batch_size=4, accumulation_steps=2, precision="bf16")
    assert (workload.clip_grad_norm, workload.name) == (0.5, "BertForSequenceClassification")
    assert len(workload.make_optimizer().param_groups) == 2
    assert (workload.sampler, workload.notes) == (None, ())


def test_loading_and_compiling_are_in_the_baseline_too() -> None:
    """Each argument that is a knob is one."""
    trainer = built.gpt2(
        dataloader_num_workers=2, dataloader_prefetch_factor=4, dataloader_persistent_workers=True,
        torch_compile=True, torch_compile_mode="max-autotune", max_grad_norm=0.0,
    )  # fmt: skip
    workload = of(trainer)
    assert workload.baseline_config == TrainConfig(
        batch_size=8, num_workers=2, prefetch_factor=4, persistent_workers=True, compile_mode="max-autotune"
    )
    assert workload.clip_grad_norm is None


def test_the_longest_samples_are_found() -> None:
    """Lists of tokens are measured by their number, so that memory is tested on the longest."""
    workload = of(built.bert())
    assert workload.sample_size is not None
    facts = check_workload(workload, "train:build", "cpu")
    assert len(built.Sentences()[facts.largest_samples[0]]["input_ids"]) == built.LONGEST


def test_tensors_measure_themselves() -> None:
    """Samples of one length need no measure."""
    assert of(built.gpt2()).sample_size is None


def test_an_iterable_dataset_is_trained_on() -> None:
    """As the Trainer does with max_steps."""
    workload = of(built.gpt2(dataset=built.Stream(), max_steps=5))
    assert check_workload(workload, "train:build", "cpu").samples is None


def test_the_loss_is_the_trainers() -> None:
    """A derived Trainer's own `compute_loss` is what is trained."""
    plain, doubled = of(built.gpt2()), of(built.gpt2(built.Distilling))
    doubled.model.load_state_dict(plain.model.state_dict())
    batch = torch.utils.data.default_collate([built.Texts()[index] for index in range(4)])
    plain.model.eval()
    doubled.model.eval()
    torch.testing.assert_close(doubled.loss(doubled.model, batch), 2 * plain.loss(plain.model, batch))


def test_a_loss_that_divides_by_the_count_of_labels_gets_it() -> None:
    """And takes the labels out of a batch that stays whole."""
    workload = of(built.gpt2(loss=built.counted_loss))
    batch: Mapping[str, Any] = torch.utils.data.default_collate([built.Texts()[index] for index in range(4)])
    loss = workload.loss(workload.model, batch)
    assert 1 < loss.item() < 10
    assert set(batch) == {"input_ids", "labels"}


def test_an_optimizer_that_was_given_is_copied() -> None:
    """Each run begins with its state, and steps the model's own parameters."""
    model = built.generator()
    given = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    workload = of(built.gpt2(model=model, optimizers=(given, None)))
    one, other = workload.make_optimizer(), workload.make_optimizer()
    assert one is not other
    assert one is not given
    assert one.param_groups[0]["params"][0] is next(iter(model.parameters()))
    assert one.param_groups[0]["lr"] == 0.5


def test_each_optimizer_is_a_new_one() -> None:
    """Bursts that compare configs in one process train with state of their own."""
    workload = of(built.gpt2())
    assert workload.make_optimizer() is not workload.make_optimizer()


def test_the_model_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the Trainer's `compute_loss`, which calls it."""
    workload = of(built.gpt2())
    with compiling(monkeypatch) as graphs:
        train(workload, 2, compile_mode="default")
    assert "scaled_dot_product_attention" in operators(graphs)


def test_activations_are_checkpointed_as_the_trainer_would() -> None:
    """It costs time and saves memory: bursts must do it too."""
    workload = of(built.gpt2(activation_checkpointing=True))
    assert any(getattr(part, "gradient_checkpointing", False) for part in workload.model.modules())
    train(workload, 1)


def test_what_bursts_leave_out_is_noted() -> None:
    """Callbacks of the user's, a training step of their own, noise, incomplete batches."""
    trainer = built.gpt2(
        built.Stepping, callbacks=[built.Watching()], neftune_noise_alpha=5.0, dataloader_drop_last=True
    )
    assert of(trainer).notes == (
        "the callback Watching",
        "training_step() of Stepping: its compute_loss() is called",
        "neftune_noise_alpha",
        "drop_last=True of the train loader: a last incomplete batch is trained on",
    )


def test_each_burst_draws_samples_of_its_own() -> None:
    """A Trainer seeds with its own number when it is made; the burst's seed holds all the same."""
    draws = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        load_workload(f"{HERE}:gpt2")
        draws.append(torch.rand(()).item())
    assert draws[0] != draws[1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (built.without_data, "expected a Trainer with a train_dataset, got one without; give it one"),
        (built.rebalanced, "got one with a BatchRebalanceSampler; give the DataLoader batch_size="),
    ],
)
def test_what_cannot_be_tuned_is_told(make: Any, words: str) -> None:
    """The target, what was expected, what it got, and what to do."""
    with pytest.raises(WorkloadError) as caught:
        of(make())
    assert str(caught.value).startswith("train:build: ")
    assert words in str(caught.value)
