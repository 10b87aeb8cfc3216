"""Makes the table of knobs, from the registry."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.knobs.config import KNOB_NAMES, allowed_words, format_scalar
from autotune.knobs.knob import FRAMEWORKS, ByLeave, Framework, Knob
from autotune.knobs.registry import KNOBS

COLUMNS = ("Knob", "Values", "Speeds up", "Also changes", "While training", "Where", "In your framework", "Why")
_DEVICES = {"cpu": "CPU", "cuda": "CUDA", "rocm": "ROCm", "mps": "MPS"}
_NAMES: dict[Framework, str] = {
    "lightning": "Lightning", "fabric": "Fabric", "transformers": "transformers", "accelerate": "Accelerate",
}  # fmt: skip
_PARTS = {"compute": "computing", "loader": "loading", "both": "computing and loading"}


def text() -> str:
    """A Markdown table with one row per knob, in the order of `TrainConfig`; each row lists the default value first."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(tuple(_cells(KNOBS[name])) for name in KNOB_NAMES)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def framework_text(knob: Knob, framework: Framework) -> str:
    """A framework's own argument for a knob, or what happens where it has none."""
    word = knob.words.get(framework)
    words = (word,) if isinstance(word, str) else word
    return ", ".join(f"`{argument}`" for argument in words) if words else knob.without_word


def _cells(knob: Knob) -> Iterator[str]:
    yield f"`{knob.name}`"
    yield _values(knob)
    yield _PARTS[knob.part]
    yield ", ".join(sorted(knob.affects)) or "nothing"
    live = knob.while_training
    yield f"by leave: {live.changes}" if isinstance(live, ByLeave) else live or "no"
    devices = ", ".join(text for kind, text in _DEVICES.items() if kind in knob.devices)
    yield "; ".join(filter(None, ("" if len(knob.devices) == len(_DEVICES) else devices, knob.when))) or "everywhere"
    frameworks: dict[str, list[str]] = {}
    for framework in FRAMEWORKS:
        frameworks.setdefault(framework_text(knob, framework), []).append(_NAMES[framework])
    yield "; ".join(f"{', '.join(names)}: {text}" for text, names in frameworks.items())
    yield knob.why


def _values(knob: Knob) -> str:
    default = format_scalar(knob.default)
    words = allowed_words(knob.name) or (["false", "true"] if isinstance(knob.default, bool) else [])
    texts = [f"`{word}`" for word in dict.fromkeys((default, *words))]
    return ", ".join(texts) if words else f"{texts[0]}, or a number"
