"""TrainConfig: canonical, validated, and typed in from the command line."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import ConfigError
from autotune.knobs.config import KNOB_NAMES, TrainConfig, check_values, format_scalar, parse_knob, parse_scalar

WORDS = ["true", "false", "none", "null", "nan", "inf", "-1", "0", "1", "8", "0.5", "1e3", "1e999", "", "bf16"]
WORDS += ["fp8", "channels_last", "default", "max-autotune", "9" * 4300, "9" * 4301]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


def test_defaults_are_those_of_pytorch() -> None:
    """A config of nothing trains as a plain script does: fp32, eager, no workers."""
    config = TrainConfig()
    assert (config.precision, config.compile_mode, config.num_workers, config.allocator) == ("fp32", None, 0, "default")


@pytest.mark.parametrize(
    ("given_values", "plain"),
    [
        ({"prefetch_factor": 4, "persistent_workers": True}, {}),
        ({"num_workers": "0", "prefetch_factor": 4}, {}),
        ({"non_blocking": True}, {}),
        ({"pin_memory": "false", "non_blocking": True}, {}),
        ({"num_workers": 2}, {"num_workers": 2, "prefetch_factor": 2}),
    ],
)
def test_configs_that_train_alike_are_equal(given_values: dict[str, Any], plain: dict[str, Any]) -> None:
    """A knob without effect is at its default: else the search would measure one config twice."""
    assert TrainConfig(**given_values) == TrainConfig(**plain)
    assert hash(TrainConfig(**given_values)) == hash(TrainConfig(**plain))


def test_knobs_that_have_an_effect_are_kept() -> None:
    """Being canonical takes nothing away from what does matter."""
    config = TrainConfig(num_workers=2, prefetch_factor=4, persistent_workers=True, pin_memory=True, non_blocking=True)
    assert (config.prefetch_factor, config.persistent_workers, config.non_blocking) == (4, True, True)


def test_a_knob_without_effect_is_validated_all_the_same() -> None:
    """A wrong value is an error even where it would be reset."""
    with pytest.raises(ConfigError, match="prefetch_factor"):
        TrainConfig(num_workers=0, prefetch_factor="many")


def test_effective_batch_counts_all_micro_steps() -> None:
    """What is learned depends on the samples of an optimizer step."""
    assert TrainConfig(batch_size=16, accumulation_steps=4).effective_batch == 64


def test_replace_changes_only_what_is_named() -> None:
    """Variants of a config are validated copies."""
    config = TrainConfig(batch_size=16, precision="bf16")
    assert config.replace(batch_size=8).changes_from(config) == {"batch_size": (16, 8)}


def test_replace_resets_what_loses_its_effect() -> None:
    """Taking the workers away takes their prefetching along."""
    config = TrainConfig(num_workers=2, prefetch_factor=8)
    assert config.replace(num_workers=0) == TrainConfig()


def test_a_config_cannot_be_changed() -> None:
    """A config that was measured stays what was measured."""
    with pytest.raises(ValueError, match="frozen"):
        TrainConfig().batch_size = 8  # type: ignore[misc]


@pytest.mark.parametrize("config", [TrainConfig(), TrainConfig(num_workers=4, compile_mode="default", num_threads=2)])
def test_a_config_survives_json(config: TrainConfig) -> None:
    """Configs travel to bursts and into result files as JSON."""
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"batch_size": 0}, "batch_size=0 cannot be used: expected greater than or equal to 1"),
        ({"batch_size": True}, "batch_size=True cannot be used: expected a whole number"),
        ({"batch_size": math.nan}, "expected a finite number"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"num_workers": 10**9}, "expected less than or equal to 4096"),
        ({"precision": "fp8"}, "expected one of fp32, tf32, bf16, fp16"),
        ({"compile_mode": "fast"}, "expected one of none, default, reduce-overhead"),
        ({"batchsize": 8}, "'batchsize' is not a knob; the knobs are batch_size"),
    ],
)
def test_a_wrong_value_is_told_with_what_is_right(values: dict[str, Any], words: str) -> None:
    """The message names the knob, what came, and what the knob takes."""
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**values)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        (" False ", False),
        ("none", None),
        ("NULL", None),
        ("8", 8),
        ("-3", -3),
        ("0.5", 0.5),
        ("1e3", 1000.0),
        ("bf16", "bf16"),
        ("nan", "nan"),
        ("-inf", "-inf"),
        ("1e999", "1e999"),
        ("", ""),
    ],
)
def test_typed_values_get_their_type(text: str, value: Any) -> None:
    """Words stay words; what no result file could hold as a number is a word too."""
    parsed = parse_scalar(text)
    assert parsed == value
    assert type(parsed) is type(value)


@given(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_shown_values_can_be_typed_again(value: Any) -> None:
    """What `format_scalar` shows, `--pin` and `--explore` read as the same value."""
    parsed = parse_scalar(format_scalar(value))
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("knob", "text", "value"),
    [
        ("batch_size", "64", 64),
        ("precision", "bf16", "bf16"),
        ("compile_mode", "none", None),
        ("compile_mode", "default", "default"),
        ("num_workers", "0", 0),
        ("prefetch_factor", "4", 4),
        ("persistent_workers", "true", True),
        ("non_blocking", "true", True),
        ("num_threads", "none", None),
    ],
)
def test_a_pinned_knob_keeps_the_typed_value(knob: str, text: str, value: Any) -> None:
    """A rule between knobs does not swallow the value of one that is pinned alone."""
    assert parse_knob(knob, text) == value


@pytest.mark.parametrize(
    ("knob", "text"),
    [("batch_size", "none"), ("batch_size", "true"), ("batch_size", "1.5"), ("precision", "16"), ("speed", "1")],
)
def test_a_knob_refuses_what_it_does_not_take(knob: str, text: str) -> None:
    """A pin that cannot be honoured is an error at once, not a surprise later."""
    with pytest.raises(ConfigError, match=knob):
        parse_knob(knob, text)


@given(st.sampled_from([*KNOB_NAMES, "other"]), st.text() | st.sampled_from(WORDS))
def test_no_pin_fails_in_another_way(knob: str, text: str) -> None:
    """Whatever is typed gives a value that the knob takes, or a ConfigError."""
    with contextlib.suppress(ConfigError):
        value = parse_knob(knob, text)
        config = check_values({knob: value})  # beside what gives it an effect
        assert value is None or getattr(config, knob) == value


@given(st.dictionaries(st.sampled_from([*KNOB_NAMES, "other", "self"]), json_values, max_size=6))
def test_no_values_make_a_config_fail_in_another_way(values: dict[str, Any]) -> None:
    """Whatever a file holds gives a canonical config or a ConfigError."""
    with contextlib.suppress(ConfigError):
        config = TrainConfig(**values)
        assert TrainConfig(**config.model_dump()) == config
