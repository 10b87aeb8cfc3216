"""The registry's words of frameworks are arguments that these frameworks take, and that ours give."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from autotune.knobs.knob import FRAMEWORKS, Framework
from autotune.knobs.registry import KNOBS
from tests.integrations.models import KNOBS as TUNED_KNOBS
from tests.integrations.models import tuned

BESIDES = {"accelerator", "callbacks", "use_cpu", "cpu"}
"""Arguments that no knob decides: where to train, and our callback."""


def given(framework: Framework) -> dict[str, Any]:
    """The arguments that our integration gives for a config that uses its words."""
    config = tuned(
        **TUNED_KNOBS | {"cudnn_benchmark": True, "compile_mode": "default", "ranks": 2, "ddp_bucket_cap_mb": 5}
    )
    if framework == "lightning":
        from autotune.integrations.lightning import trainer_kwargs

        return trainer_kwargs(config)
    if framework == "fabric":
        from autotune.integrations.fabric import fabric_kwargs

        with pytest.warns(UserWarning, match="accumulation_steps"):
            return fabric_kwargs(config)
    if framework == "accelerate":
        from autotune.integrations.accelerate import accelerator_kwargs

        return accelerator_kwargs(config)
    from autotune.integrations.transformers import training_kwargs

    return training_kwargs(config)


def taken(framework: Framework) -> set[str]:
    """The arguments that the framework itself takes."""
    if framework == "transformers":
        from transformers import TrainingArguments

        return {field.name for field in dataclasses.fields(TrainingArguments)}
    if framework == "lightning":
        from lightning.pytorch import Trainer as Owner
    elif framework == "fabric":
        from lightning.fabric import Fabric as Owner
    else:
        from accelerate import Accelerator as Owner
    return set(inspect.signature(Owner.__init__).parameters)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_words_are_arguments_that_a_framework_takes_and_that_it_is_given(framework: Framework) -> None:
    """No word is made up, none is forgotten, and nothing is said that the table does not tell."""
    words = [knob.words[framework] for knob in KNOBS.values() if framework in knob.words]
    told = {argument for word in words for argument in ((word,) if isinstance(word, str) else word)}
    assert told <= taken(framework)
    assert given(framework).keys() - BESIDES == told - {"tf32"}  # TF32 needs a GPU
