"""Several ranks in the words of frameworks: how many there are, and how they exchange gradients."""

from __future__ import annotations

import pytest

from tests.integrations.models import tuned

KNOBS = {"ranks": 2, "ddp_bucket_cap_mb": 5, "gradient_as_bucket_view": True, "find_unused_parameters": True}
TOLD = {"bucket_cap_mb": 5, "gradient_as_bucket_view": True, "static_graph": False, "find_unused_parameters": True}


def test_lightning_and_fabric_get_a_strategy_and_as_many_devices() -> None:
    """DDP's arguments are those that bursts ran with; one rank gets none."""
    from autotune.integrations.fabric import fabric_kwargs
    from autotune.integrations.lightning import trainer_kwargs

    for make in (trainer_kwargs, fabric_kwargs):
        words = make(tuned(**KNOBS))
        assert words["devices"] == 2
        assert words["strategy"]._ddp_kwargs == TOLD
        assert "strategy" not in make(tuned())


def test_accelerate_gets_a_handler() -> None:
    """Of its own kind."""
    from autotune.integrations.accelerate import accelerator_kwargs

    (handler,) = accelerator_kwargs(tuned(**KNOBS))["kwargs_handlers"]
    assert {name: getattr(handler, name) for name in TOLD} == TOLD
    assert "kwargs_handlers" not in accelerator_kwargs(tuned())


def test_transformers_says_what_it_has_words_for() -> None:
    """And warns of the rest."""
    from autotune.integrations.transformers import training_kwargs

    with pytest.warns(UserWarning, match="gradient_as_bucket_view=True .*no word"):
        words = training_kwargs(tuned(**KNOBS))
    assert (words["ddp_bucket_cap_mb"], words["ddp_find_unused_parameters"]) == (5, True)
    assert not [word for word in training_kwargs(tuned()) if word.startswith("ddp_")]


def test_an_argument_of_ddp_that_a_framework_lacks_is_named() -> None:
    """It is passed to those that hand on any argument."""
    from autotune.integrations.accelerate import accelerator_kwargs
    from autotune.integrations.lightning import trainer_kwargs

    with pytest.warns(UserWarning, match="batched_grad_copy=True .*no word"):
        assert "kwargs_handlers" in accelerator_kwargs(tuned(**KNOBS, batched_grad_copy=True))
    assert trainer_kwargs(tuned(**KNOBS, batched_grad_copy=True))["strategy"]._ddp_kwargs["batched_grad_copy"]


def test_a_static_graph_is_left_out_where_a_framework_accumulates() -> None:
    """Its first micro-batch exchanges nothing, on which DDP fails."""
    from autotune.integrations.lightning import trainer_kwargs

    with pytest.warns(UserWarning, match="static_graph=True"):
        words = trainer_kwargs(tuned(ranks=2, static_graph=True, accumulation_steps=2))
    assert not words["strategy"]._ddp_kwargs["static_graph"]
    assert trainer_kwargs(tuned(ranks=2, static_graph=True))["strategy"]._ddp_kwargs["static_graph"]


def test_a_split_model_is_told_to_be_none_of_a_frameworks_own() -> None:
    """Their FSDP is another one than was measured; DDP's arguments would be another strategy."""
    from autotune.integrations.accelerate import accelerator_kwargs
    from autotune.integrations.lightning import trainer_kwargs

    for make in (trainer_kwargs, accelerator_kwargs):
        with pytest.warns(UserWarning, match="strategy=fsdp"):
            words = make(tuned(ranks=2, strategy="fsdp"))
        assert not {"strategy", "kwargs_handlers"} & words.keys()
