"""The search space: which values are worth trying on this machine, and why.

It comes from the machine and one look at the workload, without torch and without a burst. Every proposal of the search
goes through `Space.config` and `Space.violation`, which enforce the user's pins and effective batch, and the limits of
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from autotune.errors import ConfigError
from autotune.hardware import Cpu, DeviceKind, Hardware
from autotune.knobs.config import KNOB_NAMES, Scalar, TrainConfig
from autotune.knobs.constraints import (
    accumulation_of,
    check_constraints,
    limit_of,
    nearest_batch,
    searched_knobs,
    share_of_rank,
    start_config,
)
from autotune.knobs.context import Choices, LoaderRoom, SearchContext, offer
from autotune.knobs.facts import WorkloadFacts
from autotune.knobs.knob import Rule
from autotune.knobs.loader import is_costly
from autotune.knobs.registry import KNOBS, affecting, by_priority, following, of_loader


@dataclass(frozen=True)
class Space:
    """What may be tried, and what must not."""

    baseline: TrainConfig  # the user's own
    start: TrainConfig  # the baseline with the constraints applied; gives candidates the knobs that are not searched
    choices: Mapping[str, Choices]  # of each searched knob, by expected effect on this device
    reserve: Mapping[str, Choices]  # of knobs that save memory at the cost of time; searched once memory has run out
    parameters: Mapping[str, tuple[Scalar, ...]]  # arguments of the user's `build()` to explore
    skipped: Mapping[str, str]  # why a knob is not searched
    effective_batch: int | None  # in every candidate; None when free
    pinned: Mapping[str, Scalar]  # values that every candidate holds
    limits: Mapping[str, int]  # the user's highest number for a knob
    room: LoaderRoom  # for the batches that wait in the loader
    preferred: Mapping[str, Scalar]  # values that should help here, and cost little to try
    overhead_bound: bool  # operator overhead dominates, so that compiling promises most
    device: DeviceKind
    held: frozenset[str] = frozenset()  # knobs that cannot be changed in this workload
    # values that take the place of a config's own, by knob
    instead: Callable[[TrainConfig], Mapping[str, Scalar]] = lambda _: {}
    searchable: frozenset[str] = frozenset(KNOB_NAMES)  # by the options, even knobs that have no choices now

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to try but the baseline."""
        return not (self.choices or self.parameters) and self.start == self.baseline

    def config(self, values: Mapping[str, Scalar]) -> TrainConfig:
        """The candidate with these values; pins hold, and accumulation follows from the batch size.

        Args:
            values: Some of the searched knobs; the others hold the value of `start`.

        Raises:
            ConfigError: When a knob is unknown, or a value out of range or no divisor of the effective batch.
        """
        config = TrainConfig(**{**vars(self.start), **values, **self.pinned})
        config = config.replace(**instead) if (instead := self.instead(config)) else config
        if self.effective_batch is None:
            return config
        accumulation = accumulation_of(self.effective_batch, config.batch_size, config.ranks)
        if accumulation != self.pinned.get("accumulation_steps", accumulation):
            raise ConfigError(
                f"batch_size={config.batch_size} cannot be tried: accumulation_steps is pinned, and the "
                f"effective batch is held at {self.effective_batch}"
            )
        return config.model_copy(update={"accumulation_steps": accumulation})

    def changed(self, config: TrainConfig, values: Mapping[str, Scalar]) -> TrainConfig:
        """The candidate with these values, and with those of another config in all other searched knobs.

        Raises:
            ConfigError: As in `config`.
        """
        return self.config({knob: getattr(config, knob) for knob in self.choices} | dict(values))

    def around(self, baseline: TrainConfig) -> Space:
        """The same space for a baseline that fits: candidates keep its changes, except in searched knobs."""
        changed = {knob: now for knob, (_, now) in baseline.changes_from(self.baseline).items()}
        choices = {**self.choices, **self.reserve}
        start = self.start.replace(**changed)
        if self.effective_batch is not None:  # which may differ from the baseline's
            own = share_of_rank(self.effective_batch, start.ranks)
            batch = nearest_batch(own, start.batch_size)
            start = start.replace(batch_size=batch, accumulation_steps=own // batch)
        return replace(self, baseline=baseline, start=start, choices=choices, reserve={})

    def holding(self, knob: str, value: Scalar) -> Space:
        """The same space with a knob fixed to a value instead of searched."""
        choices = {name: choice for name, choice in self.choices.items() if name != knob}
        return replace(
            self, choices=choices, preferred=_without(self.preferred, knob), pinned={**self.pinned, knob: value}
        )

    def violation(self, config: TrainConfig) -> str | None:
        """Why a config must not be run, in one sentence, or None when it may."""
        for knob, most in self.limits.items():
            if (value := getattr(config, knob)) is not None and value > most:
                return f"{knob}={value} is more than the {most} that --pin allows"
        # A change of one knob may be at odds with another's value that stays; what the baseline bears, it bears too.
        changed = config.changes_from(self.baseline)
        concerned = (knob for name, knob in KNOBS.items() if name in changed or knob.conflict(self.baseline) is None)
        conflicts = (knob.conflict(config) for knob in concerned)
        better = (f"in this workload, {knob}={value} takes its place" for knob, value in self.instead(config).items())
        return next(filter(None, (*conflicts, *better)), None) or self.room.shortage(config)

    def allows(self, config: TrainConfig, parameters: Mapping[str, Scalar]) -> bool:
        """Whether the options and limits allow what another run tried; its values need not be on offer."""
        try:
            made = self.config({knob: getattr(config, knob) for knob in self.searchable})
        except ConfigError:
            return False
        explored = all(value in self.parameters.get(name, ()) for name, value in parameters.items())
        return made == config and explored and self.violation(config) is None

    def suggested(self) -> tuple[TrainConfig, ...]:
        """First guesses for this machine, best first.

        The first one has everything that should help. Milder variants follow: the computing alone, at full precision,
        at the baseline's batch, and the loader alone. Compiling costs as much as several bursts: it is the second guess
        where operator overhead dominates, and otherwise comes after everything cheaper. No guess is the baseline, and
        none violates a constraint.
        """
        everything = self.preferred
        feeding = (*of_loader(), "num_threads")  # workers compete with threads for cores
        # The computing alone: the baseline's own workers keep their number, and get the loader settings that help them.
        sharing = ("num_workers", "num_threads") if self.start.num_workers else feeding
        variants = [
            everything,
            _without(everything, *sharing),
            _without(everything, "precision", "batch_size"),
            _without(everything, "batch_size"),
            {knob: value for knob, value in everything.items() if knob in feeding},
            {},
        ]
        configs = [config for config in map(self.fitting, variants) if config is not None]
        hiding = {knob: choice.first(KNOBS[knob].hides_overhead) for knob, choice in self.choices.items()}
        changes = {knob: value for knob, value in hiding.items() if value is not None}
        if configs and self.overhead_bound and changes:
            configs.insert(1, self.changed(configs[0], changes))
        return tuple(config for config in dict.fromkeys(configs) if config != self.baseline)

    def fitting(self, values: Mapping[str, Scalar]) -> TrainConfig | None:
        """The config with these values and a loader small enough to fit; None if no loader is."""
        target = self.config(values)
        smaller = {
            knob: _at_most(self.choices[knob], getattr(target, knob))
            for knob in affecting("waiting batches")
            if knob in self.choices
        }
        # `product` varies the last knob fastest: prefetching shrinks before workers, and workers before the batch.
        for combination in product(*smaller.values()):
            config = self.config({**values, **dict(zip(smaller, combination, strict=True))})
            if self.violation(config) is None:
                return config
        return None


def build_space(
    hardware: Hardware,
    facts: WorkloadFacts,
    *,
    device: DeviceKind,
    effective_batch: int | None,
    pinned: Mapping[str, Scalar] = {},
    only: Collection[str] | None = None,
    explored: Mapping[str, tuple[Scalar, ...]] = {},
    budget_seconds: float = 600.0,
    unsound: Mapping[tuple[str, Scalar], str] = {},
    held: Mapping[str, str] = {},
    allow_numerics: bool = False,
) -> Space:
    """The space for a workload on a machine.

    Every candidate holds `effective_batch` (None when free) and what is `pinned`; ``<=4`` pins the highest number.
    `only` lists the knobs to search, by default all that apply. `explored` holds arguments of `build()` with their
    values. Compiling must break even within the budget. `unsound` and `held` give the reasons why values do not work on
    this machine and knobs cannot be changed in this workload. With `allow_numerics`, products in FP8 and gradients
    exchanged in bf16 may be searched.

    Raises:
        ConfigError: When a knob is unknown, a value out of range, the device not there, or the constraints contradict
            each other; the message says how to resolve it.
    """
    requested = frozenset(only or ())
    limits = {knob: most for knob, pin in pinned.items() if (most := limit_of(pin)) is not None}
    pinned = {knob: pin for knob, pin in pinned.items() if knob not in limits}
    check_constraints(pinned, {*requested, *limits}, effective_batch, explored)
    record = hardware.device(device)
    if isinstance(record, Cpu) != (device == "cpu"):
        raise ConfigError(f"expected a device of this machine, got {device!r}; use --device cpu")
    if pinned.get("data_placement", "loader") != "loader" and facts.placeable_bytes is None:
        why = held.get("data_placement") or facts.unplaceable_reason or "its samples were not examined"
        raise ConfigError(
            f"data_placement={pinned['data_placement']} is pinned, but the data set cannot be collated once: {why}; "
            "pin it to loader"
        )
    searched = searched_knobs(pinned, only, effective_batch)
    hardware = share_of_machine(hardware, facts.baseline.ranks)
    room = LoaderRoom.of(hardware.memory, facts)
    budget = hardware.cpu.budget
    worker_limit = min(budget, limits.get("num_workers", budget))
    # If workers are searched, the start has no more of them than the search allows.
    highest = {**limits, "num_workers": worker_limit} if "num_workers" in searched - held.keys() else limits
    start = start_config(facts, room, effective_batch, pinned, highest, batch_free="batch_size" in searched)
    context = SearchContext(
        hardware=hardware,
        facts=facts,
        device=device,
        record=record,
        start=start,
        room=room,
        worker_limit=worker_limit,
        effective_batch=effective_batch,
        budget_seconds=budget_seconds,
        requested=requested,
        fixed=frozenset(KNOB_NAMES) - searched,
        allow_numerics=allow_numerics,
    )
    order = by_priority(device)
    if is_costly(context):
        order = tuple(dict.fromkeys(("num_workers", *order)))
    rules = {knob: rule for knob in order if knob in searched and (rule := KNOBS[knob].candidates)}
    when_short = {knob: rule for knob in rules if (rule := KNOBS[knob].when_short)}

    def sound(knob: str, rule: Rule) -> Choices | str:
        torch, since = hardware.software.torch, KNOBS[knob].since
        if since is not None and not KNOBS[knob].is_in(torch):
            return f"torch {torch} does not have it; it came with {'.'.join(map(str, since))}"
        return _sound(knob, held.get(knob, rule(context)), unsound, limits.get(knob))

    answers = {knob: sound(knob, rule) for knob, rule in rules.items()}
    short = {knob: sound(knob, rule) for knob, rule in when_short.items()}
    choices = {knob: choice for knob, choice in answers.items() if isinstance(choice, Choices)}
    space = Space(
        baseline=facts.baseline,
        start=start,
        choices=choices,
        reserve={k: choice for k, choice in short.items() if isinstance(choice, Choices) and k not in choices},
        parameters={name: tuple(values) for name, values in explored.items()},
        skipped=_skipped(answers, pinned, context),
        effective_batch=effective_batch,
        pinned=dict(pinned),
        limits=limits,
        room=room,
        preferred=_preferred(context, choices),
        overhead_bound=context.overhead_bound,
        device=device,
        held=frozenset(held),
        instead=partial(_instead, context, {knob: one for knob, one in choices.items() if KNOBS[knob].instead}),
        searchable=frozenset(knob for knob in searched if allow_numerics or not KNOBS[knob].needs_allow_numerics),
    )
    _check_room(space)
    return space


def share_of_machine(hardware: Hardware, ranks: int) -> Hardware:
    """One rank's share of a machine: a part of the CPUs and of the memory, and a GPU of its own."""
    if ranks == 1:
        return hardware
    cpu, memory = hardware.cpu, hardware.memory
    parts = {name: getattr(cpu, name) for name in ("budget", "physical_cores")}
    rooms = {name: getattr(memory, name) for name in ("available_bytes", "shm_bytes")}
    return hardware.model_copy(
        update={
            "cpu": cpu.model_copy(update={name: n and max(1, n // ranks) for name, n in parts.items()}),
            "memory": memory.model_copy(update={name: n and n // ranks for name, n in rooms.items()}),
        }
    )


def _sound(
    knob: str, choice: Choices | str, unsound: Mapping[tuple[str, Scalar], str], most: int | None
) -> Choices | str:
    """The choices without values that fail here or exceed a pin's limit, or why nothing is left to choose."""
    if isinstance(choice, str):
        return choice
    out = {value: unsound[knob, value] for value in choice.values if (knob, value) in unsound}
    if most is not None:
        out |= {n: f"--pin allows {most} at most" for n in choice.values if isinstance(n, int) and n > most}
    kept = tuple(value for value in choice.values if value not in out)
    return (
        offer(kept, choice.reason, f"what could be chosen is left out: {next(iter(out.values()))}") if out else choice
    )


def _instead(context: SearchContext, choices: Mapping[str, Choices], config: TrainConfig) -> dict[str, Scalar]:
    """The values that take the place of a config's own in this workload, as far as they are on offer."""
    values = {
        knob: choice.first(rule(context, config))
        for knob, choice in choices.items()
        if (rule := KNOBS[knob].instead) is not None
    }
    return {knob: value for knob, value in values.items() if value is not None}


def _check_room(space: Space) -> None:
    """Refuses pins that leave no candidate whose batches fit."""
    waiting = affecting("waiting batches")
    smallest = {
        knob: min(int(value or 0) for value in space.choices[knob].values) for knob in waiting if knob in space.choices
    }
    if shortage := space.room.shortage(space.config(smallest)):
        guilty = [f"{knob}={value}" for knob, value in space.pinned.items() if knob in waiting]
        raise ConfigError(
            f"with {', '.join(guilty)} pinned, {shortage}; pin less, or enlarge /dev/shm (docker run --shm-size)"
        )


def _skipped(
    answers: Mapping[str, Choices | str], pinned: Mapping[str, Scalar], context: SearchContext
) -> dict[str, str]:
    """The reasons why knobs are neither searched nor pinned."""
    reasons = {knob: answers.get(knob, "it is not among the knobs that --only names") for knob in KNOB_NAMES}
    reasons |= {knob: f"it is set rather than searched: {KNOBS[knob].when}" for knob in (*following("ranks"), "ranks")}
    skipped = {knob: why for knob, why in reasons.items() if knob not in pinned and not isinstance(why, Choices)}
    if context.effective_batch is not None:
        if "accumulation_steps" in skipped:
            skipped["accumulation_steps"] = (
                f"it follows from batch_size, since the effective batch is held at {context.effective_batch}"
            )
        if "batch_size" in skipped and "accumulation_steps" in pinned:
            skipped["batch_size"] = "it follows from accumulation_steps, which is pinned"
    elif "accumulation_steps" in skipped and "batch_size" in answers:
        skipped["accumulation_steps"] = "the effective batch is free, so nothing needs to be accumulated"
    return skipped


def _preferred(context: SearchContext, choices: Mapping[str, Choices]) -> dict[str, Scalar]:
    """The value of each knob that should help on this machine, where there is one."""
    picked: dict[str, Scalar] = {}
    for name, knob in KNOBS.items():
        if name in choices and (value := choices[name].first(knob.preferred(context, picked))) is not None:
            picked[name] = value
    return {knob: picked[knob] for knob in choices if knob in picked}


def _without(values: Mapping[str, Scalar], *knobs: str) -> dict[str, Scalar]:
    """The values without those of some knobs."""
    return {knob: value for knob, value in values.items() if knob not in knobs}


def _at_most(choices: Choices, most: int | None) -> tuple[int | None, ...]:
    """A number and the smaller ones among the choices, largest first."""
    if most is None:
        return (None,)
    numbers = {most, *(value for value in choices.values if isinstance(value, int) and value <= most)}
    return tuple(sorted(numbers, reverse=True))
