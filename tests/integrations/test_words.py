"""The registry's words of frameworks are arguments that these frameworks take, and that ours give."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

from autotune.knobs.knob import FRAMEWORKS, Framework
from autotune.knobs.registry import KNOBS
from tests.integrations.models import KNOBS as TUNED_KNOBS
from tests.integrations.models import tuned

BESIDES = {"accelerator", "callbacks", "use_cpu", "cpu"}
"""Arguments that no knob decides: where to train, and our callback."""


@pytest.mark.filterwarnings("ignore:Fabric does not apply")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_words_are_arguments_that_a_framework_takes_and_that_it_is_given(framework: Framework) -> None:
    """No word is made up, none is forgotten, and nothing is said that the table does not tell."""
    words = [knob.words[framework] for knob in KNOBS.values() if framework in knob.words]
    told = {argument for word in words for argument in ((word,) if isinstance(word, str) else word)}
    by = import_module(f"tests.integrations.trainings.by_{framework}")
    assert told <= inspect.signature(by.OWNER.__init__).parameters.keys()
    config = tuned(
        **TUNED_KNOBS | {"cudnn_benchmark": True, "compile_mode": "default", "ranks": 2, "ddp_bucket_cap_mb": 5}
    )
    assert by.words(config).keys() - BESIDES == told - {"tf32"}  # TF32 needs a GPU
