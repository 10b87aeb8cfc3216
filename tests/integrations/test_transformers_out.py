"""A ``transformers.Trainer`` trains with a tuned config: what the other frameworks do not have."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from autotune.knobs.config import TrainConfig
from autotune.recorder.drawing import Own
from autotune.results.result import Evaluation
from autotune.training.placement import placement_seconds
from autotune.training.tuned import Tuned
from tests.factories import make_result
from tests.integrations.models import compiling, operators, tuned

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from accelerate.data_loader import prepare_data_loader
from transformers import TrainerCallback, default_data_collator, trainer_pt_utils

from tests.integrations.trainings.by_transformers import (
    Run,
    Trainer,
    TrainingArguments,
    make_model,
    training_kwargs,
    tune_trainer,
)


@pytest.mark.parametrize(
    ("measured", "word"), [(None, "adamw_torch_fused"), ("AdamW", "adamw_torch_fused"), ("SGD", None)]
)
def test_the_optimizer_is_fused(measured: str | None, word: str | None) -> None:
    """By the Trainer's own word for it, unless another optimizer than AdamW was measured."""
    setting = tuned(optimizer_impl="fused")
    if measured is not None:
        setting.result = SimpleNamespace(  # type: ignore[assignment]
            evaluation=None, workload=SimpleNamespace(model=SimpleNamespace(optimizer=measured))
        )
    assert training_kwargs(setting).get("optim") == word


def test_a_form_without_a_word_is_applied_too() -> None:
    """There is none for the foreach form in transformers."""
    ran = Run(tuned(optimizer_impl="foreach", batch_size=13))
    assert (ran.optimizer.defaults["foreach"], ran.optimizer.defaults["fused"]) == (True, False)


def test_another_optimizer_of_the_user_is_switched() -> None:
    """Your ``optim`` wins over the word, and takes the form."""
    ran = Run(tuned(optimizer_impl="fused", batch_size=13), optim="sgd")
    assert isinstance(ran.optimizer, torch.optim.SGD)
    assert ran.optimizer.defaults["fused"]


def test_an_optimizer_without_the_form_is_told() -> None:
    """It trains as it is."""
    ran = Run(tuned(optimizer_impl="fused", batch_size=13), optim="rmsprop")
    assert ran.told == [
        "transformers does not apply what was tuned: optimizer_impl=fused (RMSprop has no such form)"
    ]  # fmt: skip


@pytest.mark.parametrize("native", [True, False])
def test_the_model_is_compiled(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By ``torch_compile``, and where the arguments do not say it, all the same."""
    yours = {} if native else {"torch_compile": False, "torch_compile_mode": None}
    with compiling(monkeypatch) as graphs:
        ran = Run(tuned(compile_mode="default", batch_size=13), hooked=False, **yours)
    assert "conv2d" in operators(graphs)
    assert ran.trainer.args.torch_compile == native
    assert isinstance(ran.trainer.model_wrapped, torch._dynamo.OptimizedModule) == native
    assert (ran.steps, ran.told) == (2, [])


def test_arguments_made_otherwise_are_told() -> None:
    """Each knob that they say otherwise is named; the loader is tuned all the same."""
    ran = Run(tuned(accumulation_steps=3, batch_size=13), bf16=True, gradient_accumulation_steps=1)
    assert ran.told == [
        "transformers does not apply what was tuned: accumulation_steps=3 (it is 1); "
        "precision=fp32 (its arguments say bf16=True, fp16=False)"
    ]
    assert ran.loader.batch_sampler.batch_size == 13


def test_a_step_keeps_its_samples_where_accumulation_is_not_the_tuned_one() -> None:
    """The loader keeps its batch size, which is told."""
    ran = Run(tuned(batch_size=12), per_device_train_batch_size=4, gradient_accumulation_steps=3)
    assert ran.loader.batch_sampler.batch_size * ran.trainer.args.gradient_accumulation_steps == 12
    assert ran.told == [
        "transformers does not apply what was tuned: accumulation_steps=1 (it is 3)",
        "transformers does not apply what was tuned: batch_size=12 (it is 4)",
    ]


def test_arguments_of_another_batch_size_train_with_the_tuned_one() -> None:
    """The loader is tuned, whatever its size was."""
    ran = Run(tuned(batch_size=13), per_device_train_batch_size=8)
    assert ran.loader.batch_sampler.batch_size == 13
    assert ran.told == []


@pytest.mark.filterwarnings("ignore:.*splits batches over 2 GPUs")
def test_a_trainer_of_several_gpus_trains_with_the_tuned_batch_size(tmp_path: Path) -> None:
    """Its own batch size is that of all GPUs together: none that it has found by itself."""
    setting = tuned(batch_size=13)
    arguments = TrainingArguments(**training_kwargs(setting, output_dir=str(tmp_path), report_to="none"))
    arguments._n_gpu = 2
    trainer = Trainer(make_model(), arguments, train_dataset=[{"labels": 0}])
    assert trainer._train_batch_size == 26
    assert tune_trainer(setting, trainer).get_train_dataloader().batch_sampler.batch_size == 13


def test_a_batch_size_that_the_trainer_finds_itself_stays() -> None:
    """After running out of memory it tries a smaller one, which is told."""

    class Hungry(TrainerCallback):  # type: ignore[misc]
        """Runs out of memory with batches that are too large."""

        def on_step_begin(self, *_: Any, train_dataloader: Any, **__: Any) -> None:
            if train_dataloader.batch_sampler.batch_size > 11:
                raise RuntimeError("CUDA out of memory.")

    ran = Run(tuned(batch_size=13), callback=Hungry(), auto_find_batch_size=True)
    assert ran.loader.batch_sampler.batch_size == 11
    assert ran.told == ["transformers does not apply what was tuned: batch_size=13 (it is 11)"]


def test_copies_may_be_asynchronous() -> None:
    """``non_blocking`` goes with pinned memory, through Accelerate's settings."""
    words = training_kwargs(tuned(pin_memory=True, non_blocking=True))
    assert (words["dataloader_pin_memory"], words["accelerator_config"]) == (True, {"non_blocking": True})


def test_evaluation_has_its_own_batch_size() -> None:
    """In transformers' word for it, where one was found."""
    evaluation = Evaluation(batch_size=16, samples_per_second=None, ratio=1.5)
    result = make_result().model_copy(update={"evaluation": evaluation})
    assert training_kwargs(Tuned(TrainConfig(batch_size=4), result=result))["per_device_eval_batch_size"] == 16
    assert "per_device_eval_batch_size" not in training_kwargs(tuned(batch_size=4))


def test_the_loader_draws_as_that_of_the_training_that_was_measured() -> None:
    """The arguments have the tuned number of workers already."""
    config = TrainConfig(batch_size=13, num_workers=1, persistent_workers=True)
    ran = Run(Tuned(config, result=make_result()), hooked=False)
    assert ran.loader.base_dataloader.own == Own()


def test_the_model_has_its_own_calls_after_training() -> None:
    """And the tuned ones again if it is trained again."""
    ran = Run(tuned(batch_size=13, memory_format="channels_last"))
    assert not [part for part in ran.trainer.model.modules() if "forward" in vars(part)]
    assert ran.seen is not None
    ran.seen.channels_last.clear()
    ran.trainer.train()
    assert ran.seen.channels_last == {True}


def test_the_model_has_its_own_calls_after_an_interrupted_training() -> None:
    """A Trainer does not tell its callbacks; the next training of the model does not take tuned calls for its own."""

    class Interrupting(TrainerCallback):  # type: ignore[misc]
        """Presses Ctrl-C."""

        def on_step_end(self, *_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

    model, setting = make_model(), tuned(batch_size=13, memory_format="channels_last")
    with pytest.raises(KeyboardInterrupt):
        Run(setting, callback=Interrupting(), model=model)
    assert not [part for part in model.modules() if "forward" in vars(part)]
    Run(setting, model=model)
    assert not [part for part in model.modules() if "forward" in vars(part)]


def test_a_data_set_is_collated_once() -> None:
    """The Trainer trains on the batches that are selected from it, and nothing is missing."""
    ran = Run(tuned(batch_size=4, data_placement="collated"))
    assert ran.told == []
    assert placement_seconds(ran.loader.dataset) is not None


class Stream(IterableDataset[Any]):
    """Does not shard itself."""

    def __iter__(self) -> Iterator[Any]:
        return iter(SENTENCES)


class Sharing(Trainer):  # type: ignore[misc]
    """Its loader shares out the samples itself."""

    def get_train_dataloader(self) -> Any:
        sampler = DistributedSampler(SENTENCES, num_replicas=2, rank=0)  # type: ignore[arg-type]
        return DataLoader(SENTENCES, sampler=sampler, collate_fn=default_data_collator)  # type: ignore[arg-type]


SENTENCES = [{"input_ids": [number], "labels": number} for number in range(32)]


@pytest.mark.parametrize(
    ("kind", "data", "more", "samples"),
    [
        (Trainer, SENTENCES, {}, 16),
        (Trainer, Stream(), {}, 16),
        (Trainer, SENTENCES, {"train_sampling_strategy": "batch_rebalance"}, 32),  # it knows of one rank
        (Sharing, SENTENCES, {}, 16),
    ],
    ids=["samples", "stream", "own batches", "own sampler"],
)
def test_samples_are_shared_out_once(kind: Any, data: Any, more: dict[str, str], samples: int, tmp_path: Path) -> None:
    """Among two ranks, of which this is the first."""
    if more and not hasattr(trainer_pt_utils, "BatchRebalanceSampler"):
        pytest.skip("this version has no such sampler")
    setting = tuned(batch_size=4, num_workers=1)
    args = TrainingArguments(**{**training_kwargs(setting, output_dir=tmp_path, max_steps=1), **more})
    trainer = kind(make_model(), args, train_dataset=data, data_collator=default_data_collator)
    trainer.accelerator.prepare = functools.partial(
        prepare_data_loader, num_processes=2, process_index=0, put_on_device=False, dispatch_batches=False
    )
    loader = tune_trainer(setting, trainer).get_train_dataloader()
    assert sum(len(batch["labels"]) for batch in loader) == samples
    assert loader.num_workers == 1
