"""How figures and names are worded wherever a person reads them, so that every place says them alike."""

from __future__ import annotations

from rich.text import Text

from autotune.measurement import Measurement
from autotune.units import format_rate


def as_text(value: str, style: str = "") -> Text:
    """What a user or a file says, as text that is neither markup nor control characters.

    Names must not steer the terminal: "[bold]" stays "[bold]", and an escape character is spelled out.
    """
    spelled = "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in value)
    return Text(spelled, style=style)


def percent(fraction: float, digits: int = 0) -> str:
    """A fraction in per cent: ``34 %``."""
    return f"{fraction * 100:.{digits}f} %"


def ratio_text(ratio: float) -> str:
    """A ratio of rates with three digits, and one more beside 1, where it decides: ``1.42×``, ``1.008×``."""
    if 0.9 < ratio < 1.1:
        return f"{ratio:.3f}×"
    return f"{ratio:,.0f}×" if ratio >= 99.95 else f"{ratio:#.3g}×"


def compiler_text(measurement: Measurement) -> str | None:
    """How the compiler failed to take the model whole, and where its lines are told; None when it did not fail."""
    breaks, recompiles = measurement.graph_breaks or 0, measurement.recompiles or 0
    if not (breaks or recompiles):
        return None
    return (
        f"torch.compile broke the graph {breaks} times and compiled parts anew {recompiles} times; "
        "TORCH_LOGS=graph_breaks,recompiles names the lines"
    )


def rate_text(measurement: Measurement) -> str:
    """A rate with half the width of its 95 % interval: ``1,230 samples/s ±0.8 %``."""
    rate, interval = measurement.samples_per_second, measurement.ci95_samples_per_second
    text = format_rate(rate)
    if len(measurement.blocks) > 1 and rate > 0:
        text += f" ±{percent((interval.high - interval.low) / 2 / rate, 1)}"
    return text if measurement.steady else f"{text} (not steady)"
