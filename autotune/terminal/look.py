"""The output of a dry run: what a look at a script has found, and what the search would try."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType

from autotune.knobs import Space, format_scalar
from autotune.scripts.facts import baseline_of
from autotune.scripts.seen import SeenScript
from autotune.units import format_seconds
from autotune.wording import as_text, labelled


def look_lines(seen: SeenScript | None, space: Space, protects: str | None) -> RenderableType:
    """A dry run as terminal output.

    Args:
        seen: What the look has found; None for a model.
        space: What the search would try.
        protects: How a script's bursts are kept from your files; None for a model.
    """
    choices = {
        knob: ", ".join(map(format_scalar, choice.values)) + f" ({choice.reason})"
        for knob, choice in space.choices.items()
    }
    choices |= {name: ", ".join(map(format_scalar, values)) for name, values in space.parameters.items()}
    return Group(
        *(_found(seen, space, str(protects)) if seen is not None else ()),
        as_text("would be tried", "bold"),
        *(labelled(f"  {knob}", how) for knob, how in choices.items()),
        as_text("would stay unchanged", "bold"),
        *(labelled(f"  {knob}", why) for knob, why in space.skipped.items()),
    )


def look_data(seen: SeenScript | None, space: Space, protects: str | None) -> dict[str, Any]:
    """A dry run as JSON data."""
    choices = {knob: list(choice.values) for knob, choice in space.choices.items()}
    choices |= {name: list(values) for name, values in space.parameters.items()}
    facts = dataclasses.asdict(seen) if seen is not None else {}
    return {"seen": facts, "files": protects, "choices": choices, "skipped": dict(space.skipped)}


def _found(seen: SeenScript, space: Space, protects: str) -> Iterator[RenderableType]:
    rows = {
        "model": "{name}, {weights:,} weights".format(**seen.facts["model"]),
        "optimizer": _optimizer(seen),
        "loader": _loader(seen),
        "an optimizer step": f"{space.baseline.effective_batch} samples, in {seen.accumulation} micro-batches",
        "precision": seen.precision or "fp32",
        "compiled": "by the script" if seen.compiled else "no",
        "device": seen.device,
        "runs under": ", ".join(seen.frameworks) or "its own loop",
        "until it trains": format_seconds(seen.seconds_to_loop),
        "your files": protects,
    }
    yield as_text("found", "bold")
    yield from (labelled(f"  {what}", how) for what, how in rows.items())


def _optimizer(seen: SeenScript) -> str:
    if seen.updates_itself and seen.optimizer is None:
        return "none of torch: the script changes its weights itself"
    return f"{seen.optimizer}" + (f" and {seen.optimizers - 1} more" if seen.optimizers > 1 else "")


def _loader(seen: SeenScript) -> str:
    if not seen.loaders:
        return "none: steps are counted"
    main = seen.loaders[0]
    count = f"{main.samples:,} samples" if main.samples is not None else "samples without end"
    more = f", and {len(seen.loaders) - 1} more" if len(seen.loaders) > 1 else ""
    dataset = main.dataset.rpartition(".")[2]
    size = f"{main.arguments['batch_size']}"
    if main.arguments["batch_size"] is None:  # batch_size=None or a batch_sampler: the most frequent size
        size = f"{baseline_of(seen).batch_size}, which the script makes itself"
    return f"{dataset} of {count}, batches of {size}, {main.arguments['num_workers']} workers{more}"
