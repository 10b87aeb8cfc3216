"""What a config changes in a training, in the recorder's format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.knobs.config import Scalar, TrainConfig, format_scalar
from autotune.knobs.registry import KNOBS, READS, loader_arguments, variables


def changes_of(config: TrainConfig, baseline: TrainConfig) -> dict[str, Any]:
    """The changes from the baseline to a config; knobs name the functions that make them."""
    changed = [KNOBS[name] for name in config.changes_from(baseline)]
    arguments = loader_arguments(config)
    taking = {knob.dataloader_argument: knob.name for knob in changed if knob.dataloader_argument is not None}
    return {
        "knobs": config.model_dump(mode="json"),
        "compiled": config.is_compiled,
        "reads": {knob.name: READS[knob.name] for knob in changed if knob.name in READS},
        "shows": {knob.name: knob.shows.__name__ for knob in changed if knob.shows is not None},
        "changed": [knob.name for knob in changed],
        "loader": {argument: arguments[argument] for argument in taking},
        "taking": taking,
        "process": {
            knob.on_process.__name__: getattr(config, knob.name) for knob in changed if knob.on_process is not None
        },
        "model": {by.__name__: knob.name for knob in changed for by in (knob.on_model, knob.outside) if by is not None},
        "optimizer": {
            knob.on_optimizer.__name__: getattr(config, knob.name) for knob in changed if knob.on_optimizer is not None
        },
        "ddp": {
            knob.name: (knob.ddp_argument, getattr(config, knob.name))
            for knob in changed
            if knob.ddp_argument is not None
        },
        "variables": {name: value for name, value in variables(config).items() if name not in variables(baseline)},
        "copies": any(knob.on_copies and getattr(config, knob.name) for knob in changed),
    }


def words_of(knobs: Mapping[str, Scalar]) -> str:
    """Knobs as a person reads them: ``num_workers=2, precision=bf16``."""
    return ", ".join(f"{knob}={format_scalar(value)}" for knob, value in knobs.items())


def in_words(config: TrainConfig, baseline: TrainConfig) -> dict[str, Any]:
    """A candidate for a running training, in the recorder's format."""
    changes = changes_of(config, baseline)
    knobs = {knob: now for knob, (_, now) in config.changes_from(baseline).items()}
    changed = {what: changes[what] for what in ("loader", "process", "optimizer", "model")}
    return {"name": words_of(knobs), "knobs": knobs, **changed}
