"""One epoch with a ``transformers.Trainer``, of a small vision transformer with random weights."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler

from autotune.training.tuned import Tuned

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from autotune.integrations.transformers import training_kwargs, tune_trainer
from tests.integrations.models import Seen, images, remarks

NAME, TOLD, SAMPLER = "transformers", (), RandomSampler
OWNER, words, FP32 = TrainingArguments, training_kwargs, ("fp16", False)


def make_model() -> Any:
    """Patches of 4 × 4 pixels by a convolution, one layer of attention, four classes."""
    return ViTForImageClassification(
        ViTConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8,
            patch_size=4, num_labels=4,
        )
    )  # fmt: skip


class Run:
    """One epoch."""

    def __init__(
        self, setting: Tuned, hooked: bool = True, callback: Any = None, model: Any = None, **yours: Any
    ) -> None:
        model = model or make_model()
        self.conv = next(part for part in model.modules() if isinstance(part, torch.nn.Conv2d))
        self.seen = Seen(self.conv) if hooked else None
        quiet = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
        quiet |= {"output_dir": tempfile.gettempdir(), "num_train_epochs": 1}
        samples = [{"pixel_values": pixels, "labels": int(label)} for pixels, label in images()]
        with remarks() as self.told:
            args = TrainingArguments(**{**training_kwargs(setting, **quiet), **yours})
            callbacks = [callback] if callback is not None else None
            self.trainer = tune_trainer(setting, Trainer(model, args, train_dataset=samples, callbacks=callbacks))
            self.trainer.train()
        self.loader = self.trainer.callback_handler.train_dataloader
        self.optimizer = self.trainer.optimizer.optimizer
        self.steps = self.trainer.state.global_step
