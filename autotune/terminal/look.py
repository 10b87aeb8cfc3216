"""What a look at a script has found, and what would be changed in it."""

from __future__ import annotations

import dataclasses
import json

from rich.console import Group, RenderableType

from autotune.knobs import Space, format_scalar
from autotune.scripts.facts import baseline_of, names_of
from autotune.scripts.seen import SeenScript
from autotune.secrets import masked_data
from autotune.units import format_seconds
from autotune.wording import as_text, labelled


def look_lines(seen: SeenScript, space: Space, protects: str) -> RenderableType:
    """For a person; `protects` says how files are protected."""
    rows = {
        "model": names_of(seen.model_names) + f", {seen.weights:,} weights",
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
    choices = {
        knob: ", ".join(map(format_scalar, choice.values)) + f" ({choice.reason})"
        for knob, choice in space.choices.items()
    }
    return Group(
        as_text("found", "bold"),
        *(labelled(f"  {what}", how) for what, how in rows.items()),
        as_text("would be tried", "bold"),
        *(labelled(f"  {knob}", how) for knob, how in choices.items()),
        as_text("would be left as it is", "bold"),
        *(labelled(f"  {knob}", why) for knob, why in space.skipped.items()),
    )


def look_json(seen: SeenScript | None, space: Space, protects: str | None) -> str:
    """For a program, without the secrets of the script's command."""
    choices = {knob: list(choice.values) for knob, choice in space.choices.items()}
    known = dataclasses.asdict(seen) if seen is not None else {}
    found = {"seen": known, "files": protects, "choices": choices, "skipped": dict(space.skipped)}
    return json.dumps(masked_data(found), indent=2, default=str)


def _optimizer(seen: SeenScript) -> str:
    if seen.updates_itself and seen.optimizer is None:
        return "none of torch: the script changes its weights itself"
    return f"{seen.optimizer}" + (f" and {seen.optimizers - 1} more" if seen.optimizers > 1 else "")


def _loader(seen: SeenScript) -> str:
    if not seen.loaders:
        return "none: steps are counted"
    main = seen.loaders[0]
    of = f"{main.samples:,} samples" if main.samples is not None else "samples without end"
    more = f", and {len(seen.loaders) - 1} more" if len(seen.loaders) > 1 else ""
    dataset = main.dataset.rpartition(".")[2]
    size = f"{main.batch_size}"
    if main.batch_size is None:  # of batch_size=None, or a batch_sampler: what was seen most often
        size = f"{baseline_of(seen).batch_size}, which the script makes itself"
    return f"{dataset} of {of}, batches of {size}, {main.num_workers} workers{more}"
