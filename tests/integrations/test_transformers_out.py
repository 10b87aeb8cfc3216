"""A ``transformers.Trainer`` trains with what was tuned, on a small vision transformer with random weights."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.knobs.config import TrainConfig
from autotune.results.result import Evaluation
from autotune.training.placement import placement_seconds
from autotune.training.tuned import Tuned

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from autotune.integrations.transformers import training_kwargs, tune_trainer
from tests.factories import make_result
from tests.integrations.models import (
    KNOBS,
    LOADER,
    SAMPLES,
    STEPS,
    Seen,
    compiling,
    images,
    is_channels_last,
    operators,
    process_settings,
    settings,
    tuned,
)


def make_model() -> Any:
    """Patches of 4 × 4 pixels by a convolution, one layer of attention, four classes."""
    return ViTForImageClassification(
        ViTConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8,
            patch_size=4, num_labels=4,
        )
    )  # fmt: skip


def convolution(model: Any) -> torch.nn.Conv2d:
    """The one that makes patches."""
    return next(part for part in model.modules() if isinstance(part, torch.nn.Conv2d))


def samples() -> list[dict[str, Any]]:
    """Images and labels under the names that the model takes."""
    return [{"pixel_values": pixels, "labels": int(label)} for pixels, label in images()]


class Run:
    """One epoch with a Trainer."""

    def __init__(self, setting: Tuned, folder: Path, hooked: bool = True, **yours: Any) -> None:
        self.model = make_model()
        self.seen = Seen(convolution(self.model)) if hooked else None
        quiet = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
        quiet |= {"output_dir": str(folder), "num_train_epochs": 1}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            args = TrainingArguments(**{**training_kwargs(setting, **quiet), **yours})
            self.trainer = tune_trainer(setting, Trainer(self.model, args, train_dataset=samples()))
            self.trainer.train()
        self.loader = self.trainer.callback_handler.train_dataloader
        self.optimizer = self.trainer.optimizer.optimizer
        self.told = [str(one.message) for one in caught if "what was tuned" in str(one.message)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One training with many knobs."""
    return Run(tuned(**KNOBS), tmp_path_factory.mktemp("run"))


def test_nothing_is_missing(run: Run) -> None:
    """All of it is in effect, and nobody is warned."""
    assert run.told == []


def test_the_model_runs_in_the_tuned_precision(run: Run) -> None:
    """``bf16`` on a CPU needs ``use_cpu`` too."""
    assert run.seen is not None
    assert run.seen.dtypes == {torch.bfloat16}


def test_gradients_are_accumulated(run: Run) -> None:
    """Seven batches, three at a time, are three optimizer steps."""
    assert run.trainer.state.global_step == STEPS
    assert len(run.loader) == 7


def test_the_loader_has_the_tuned_settings(run: Run) -> None:
    """It draws the same samples, shuffled as the Trainer shuffles."""
    assert settings(run.loader) == LOADER
    assert run.loader.batch_sampler.batch_size == 4
    assert isinstance(run.loader.batch_sampler.sampler, torch.utils.data.RandomSampler)
    assert len(run.loader.dataset) == SAMPLES


def test_weights_and_inputs_are_laid_out(run: Run) -> None:
    """Channels last on both sides of the convolution."""
    assert run.seen is not None
    assert is_channels_last(convolution(run.model).weight)
    assert run.seen.channels_last == {True}


def test_the_optimizer_is_fused(run: Run) -> None:
    """By the Trainer's own word for it."""
    assert run.trainer.args.optim == "adamw_torch_fused"
    assert run.optimizer.defaults["fused"]


def test_a_form_without_a_word_is_applied_too(tmp_path: Path) -> None:
    """There is none for the foreach form in transformers."""
    ran = Run(tuned(optimizer_impl="foreach", batch_size=13), tmp_path)
    assert (ran.optimizer.defaults["foreach"], ran.optimizer.defaults["fused"]) == (True, False)


def test_another_optimizer_of_the_user_is_switched(tmp_path: Path) -> None:
    """Your ``optim`` wins over the word, and takes the form."""
    ran = Run(tuned(optimizer_impl="fused", batch_size=13), tmp_path, optim="sgd")
    assert isinstance(ran.optimizer, torch.optim.SGD)
    assert ran.optimizer.defaults["fused"]


def test_an_optimizer_without_the_form_is_told(tmp_path: Path) -> None:
    """It trains as it is."""
    ran = Run(tuned(optimizer_impl="fused", batch_size=13), tmp_path, optim="rmsprop")
    assert ran.told == [
        "transformers does not apply what was tuned: optimizer_impl=fused (RMSprop has no such form)"
    ]  # fmt: skip


@pytest.mark.parametrize("native", [True, False])
def test_the_model_is_compiled(native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By ``torch_compile``, and where the arguments do not say it, all the same."""
    yours = {} if native else {"torch_compile": False, "torch_compile_mode": None}
    with compiling(monkeypatch) as graphs:
        ran = Run(tuned(compile_mode="default", batch_size=13), tmp_path, hooked=False, **yours)
    assert "conv2d" in operators(graphs)
    assert ran.trainer.args.torch_compile == native
    assert isinstance(ran.trainer.model_wrapped, torch._dynamo.OptimizedModule) == native
    assert (ran.trainer.state.global_step, ran.told) == (2, [])


def test_process_settings_and_attention_are_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, allocator, and the kernels that attention may use."""
    with process_settings(monkeypatch) as allocators:
        ran = Run(tuned(num_threads=1, allocator="tuned", sdpa_backend="math", batch_size=13), tmp_path)
        assert torch.get_num_threads() == 1
    assert set(allocators) == {torch.device("cpu")}
    assert ran.seen is not None
    assert ran.seen.flash == {False}


def test_arguments_made_otherwise_are_told(tmp_path: Path) -> None:
    """Each knob that they say otherwise is named; the loader is tuned all the same."""
    ran = Run(tuned(accumulation_steps=3, batch_size=13), tmp_path, bf16=True, gradient_accumulation_steps=1)
    assert ran.told == [
        "transformers does not apply what was tuned: accumulation_steps=3 (it is 1); "
        "precision=fp32 (its arguments say bf16=True, fp16=False)"
    ]
    assert ran.loader.batch_sampler.batch_size == 13


def test_fp16_on_a_cpu_is_told() -> None:
    """It would silently train in fp32."""
    with pytest.warns(UserWarning, match=r"transformers does not apply .*: precision=fp16 "):
        assert training_kwargs(tuned(precision="fp16"))["fp16"] is False


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


def test_a_data_set_is_collated_once(tmp_path: Path) -> None:
    """The Trainer trains on the batches that are selected from it, and nothing is missing."""
    run = Run(tuned(batch_size=4, data_placement="collated"), tmp_path)
    assert run.told == []
    assert placement_seconds(run.loader.dataset) is not None
