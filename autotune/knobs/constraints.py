"""Applies the user's constraints to the start config: pins, which fix or limit a knob, and the effective batch.

Contradictions are refused before anything runs; the message says how to resolve them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from autotune.errors import ConfigError
from autotune.knobs.batch import divisors, spread
from autotune.knobs.config import KNOB_NAMES, Scalar, TrainConfig, check_values, unknown_knob
from autotune.knobs.context import LoaderRoom
from autotune.knobs.facts import WorkloadFacts

AT_MOST = "<="
"""The prefix of a pin that limits a number: ``num_workers<=4``."""


def at_most(number: int) -> str:
    """The pin that limits a knob to a number."""
    return f"{AT_MOST}{number}"


def limit_of(pin: Scalar) -> int | None:
    """The number that a pin limits its knob to; None for a pin that fixes the knob."""
    return int(pin.removeprefix(AT_MOST)) if isinstance(pin, str) and pin.startswith(AT_MOST) else None


def check_constraints(
    pinned: Mapping[str, Scalar],
    requested: Collection[str],
    effective_batch: int | None,
    explored: Mapping[str, tuple[Scalar, ...]],
) -> None:
    """Refuses constraints that are out of range, or that contradict each other."""
    if unknown := sorted({*pinned, *requested} - set(KNOB_NAMES)):
        raise ConfigError(unknown_knob(unknown[0]))
    check_values(pinned)
    workers = pinned.get("num_workers")
    if workers and pinned.get("data_placement", "loader") != "loader":
        raise ConfigError(
            f"data_placement={pinned['data_placement']} and num_workers={workers} are pinned, but a data set that is "
            "collated once leaves workers nothing to load; pin only one"
        )
    if effective_batch is not None and not 1 <= effective_batch < 2**31:  # finding more divisors takes minutes
        raise ConfigError(f"the effective batch {effective_batch} cannot be used: expected 1 to {2**31 - 1}")
    if knobs := sorted(explored.keys() & set(KNOB_NAMES)):
        raise ConfigError(
            f"--explore {knobs[0]} names a knob, which is searched by itself; rename the argument of build(), or leave "
            "--explore out"
        )
    if empty := [name for name, values in explored.items() if not values]:
        raise ConfigError(f"{empty[0]!r} is to be explored, but without values; use --explore {empty[0]}=a,b")


def searched_knobs(pinned: Mapping[str, Scalar], only: Collection[str] | None, effective_batch: int | None) -> set[str]:
    """The knobs that may be searched. Batch size and accumulation are one choice, named batch_size."""
    searched = (set(KNOB_NAMES) if only is None else set(only)) - pinned.keys()
    if "accumulation_steps" in searched:
        searched |= {"batch_size"} - pinned.keys()
    if effective_batch is not None and "accumulation_steps" in pinned:
        searched.discard("batch_size")
    return searched - {"accumulation_steps"}


def accumulation_of(effective_batch: int, batch_size: int, ranks: int = 1) -> int:
    """Micro-steps that make up the effective batch."""
    own = share_of_rank(effective_batch, ranks)
    if own % batch_size:
        allowed = ", ".join(map(str, spread(divisors(own), 12)))
        each = f", {own} for each of {ranks} ranks" if ranks > 1 else ""
        raise ConfigError(
            f"batch_size={batch_size} does not divide the effective batch of {effective_batch}{each}; "
            f"use a divisor of it ({allowed}), or --effective-batch free"
        )
    return own // batch_size


def share_of_rank(effective_batch: int, ranks: int) -> int:
    """Samples of an optimizer step that each rank trains."""
    if effective_batch % ranks:
        raise ConfigError(
            f"the effective batch of {effective_batch} cannot be shared out evenly among {ranks} ranks; "
            f"use --effective-batch {max(1, effective_batch // ranks) * ranks}, or 'free'"
        )
    return effective_batch // ranks


def nearest_batch(effective_batch: int, batch_size: int, most_steps: int | None = None) -> int:
    """The largest divisor of an effective batch that is no larger than a batch; a larger one if no other may be."""
    allowed = [
        value for value in divisors(effective_batch) if effective_batch // value <= (most_steps or effective_batch)
    ]
    return max((value for value in allowed if value <= batch_size), default=allowed[0])


def _batch(
    baseline: TrainConfig,
    effective_batch: int | None,
    pinned: Mapping[str, Scalar],
    limits: Mapping[str, int],
    *,
    batch_free: bool,
) -> tuple[int, int]:
    """Batch size and accumulation that candidates start from."""
    batch, steps = pinned.get("batch_size"), pinned.get("accumulation_steps")
    own = share_of_rank(effective_batch, baseline.ranks) if effective_batch is not None else None
    if own is None or effective_batch is None:
        kept = baseline.accumulation_steps if not batch_free and batch is None else 1
        return int(batch or baseline.batch_size), int(steps or kept)
    if batch is not None:
        derived = accumulation_of(effective_batch, int(batch), baseline.ranks)
        if steps not in {None, derived}:
            would_be = int(batch) * int(steps or 1) * baseline.ranks
            raise ConfigError(
                f"batch_size={batch} and accumulation_steps={steps} are pinned, but the effective batch is "
                f"{effective_batch}; pin only one, or pass --effective-batch {would_be}"
            )
        return int(batch), derived
    if steps is not None:
        if own % int(steps):
            raise ConfigError(
                f"accumulation_steps={steps} is pinned, but does not divide the effective batch of "
                f"{effective_batch}; pin a divisor of it, or use --effective-batch free"
            )
        return own // int(steps), int(steps)
    nearest = nearest_batch(own, baseline.batch_size, limits.get("accumulation_steps"))
    return nearest, own // nearest


def start_config(
    facts: WorkloadFacts,
    room: LoaderRoom,
    effective_batch: int | None,
    pinned: Mapping[str, Scalar],
    limits: Mapping[str, int],
    *,
    batch_free: bool,
) -> TrainConfig:
    """The baseline with the constraints applied, and with a smaller loader if its batches would not fit."""
    own = facts.baseline.replace(**pinned)
    beyond = {knob: most for knob, most in limits.items() if _is_beyond(own, knob, most)}
    baseline = own.replace(**beyond)
    batch, steps = _batch(baseline, effective_batch, pinned, limits, batch_free=batch_free)
    start = baseline.replace(batch_size=batch, accumulation_steps=steps)
    for knob, most in limits.items():
        if _is_beyond(start, knob, most):
            raise ConfigError(
                f"--pin allows {knob} of {most} at most, but the effective batch of {effective_batch} takes batch_size="
                f"{batch} with accumulation_steps={steps}; raise the limit, or use --effective-batch free"
            )
    while room.shortage(start) is not None and (smaller := _smaller_loader(start, pinned)) is not None:
        start = smaller
    return start


def _is_beyond(config: TrainConfig, knob: str, most: int) -> bool:
    """Whether a knob has a number above its limit."""
    return (getattr(config, knob) or 0) > most


def _smaller_loader(config: TrainConfig, pinned: Mapping[str, Scalar]) -> TrainConfig | None:
    """The config with fewer waiting batches: less prefetching first, then fewer workers; None if pins forbid it."""
    workers, prefetch = config.num_workers, config.prefetch_factor or 1
    fewer_workers = "num_workers" not in pinned and workers > 0
    # The last worker, or pinned workers, may prefetch as little as one batch.
    if "prefetch_factor" not in pinned and prefetch > (2 if fewer_workers and workers > 1 else 1):
        return config.replace(prefetch_factor=prefetch - 1)
    return config.replace(num_workers=workers - 1) if fewer_workers else None
