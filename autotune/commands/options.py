"""Parses the values of options; an invalid one is told with what was expected."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from autotune.errors import UnitError, UsageError
from autotune.files import stem_of
from autotune.units import LEAST_DOLLARS, MOST_DOLLARS, parse_fraction, quoted
from autotune.wording import spelled

if TYPE_CHECKING:
    from autotune.hardware import Cpu, DeviceKind, Gpu, Hardware
    from autotune.knobs import Scalar
    from autotune.measuring import Objective
    from autotune.workload.sent import Sent

SAMPLERS = ("bayes", "tpe", "gp", "random")
COMPARISON_FORMATS = ("table", "md", "csv", "json", "html")
MOST_SAMPLES = 2**31 - 1
"""The largest effective batch: no loader's index counts further, and the divisors of more take minutes to find."""
MOST_WORKERS = 4096
"""More than the CPUs of any machine: each is a process."""
MOST_PINNED = {"num_workers": MOST_WORKERS, "num_threads": MOST_WORKERS, "prefetch_factor": 1024}
"""Higher pins would start processes or threads, or fill memory, without end."""
MOST_SEED = 2**32 - 1
"""The highest that numpy's random generator takes, from which the samplers draw."""
MOST_VALUES = 64
"""Of one argument, to explore: each costs a burst or more, and a search has a few hundred."""
MOST_RANKS = 256
"""More than the devices of any machine: each is a process that holds the model."""
MOST_CHARACTERS = 200
"""Of one typed value: it stands in every row of the result's tables."""
_THOUSANDS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
MOST_TRAINED = 1e15
"""Samples of a training: no loader counts further in a machine's life."""
LEAST_FLOOR = 0.01
"""The least share of the fastest rate to be kept: below, none is."""
MAX_NAME_CHARACTERS = 60
"""Characters of a machine's name: it stands in each row of a comparison."""
LEAST_MEMORY = 0.01
"""The least share of memory: with less, not even torch's own libraries would fit."""


@dataclass(frozen=True)
class Options:
    """What the person asked for; the fields are the options of the command line.

    Attributes:
        objective: The name of what is maximised.
        at_least: The share of the fastest config's rate that the answer must reach; None: any.
        dollars_per_hour: What the machine costs, where that was told.
        machine_name: What comparisons call the machine; None: by what trains.
        effective_batch: A number; ``"free"``; None holds the baseline's.
        explored: Values for keyword arguments of ``build()``.
        warm_start: Result files of other machines, whose configs are tried first.
        script: The command that trains, where a script is tuned; the target is its text.
        evaluation: Whether a batch size to evaluate with is looked for as well.
        sent: The function, where one is tuned that only this process has; the target is its name.
        ranks: Processes that train together, as `torchrun` starts them; 0: as many as there are devices.
        join: The name of a study in the storage, which other machines of this kind share.
        fit: Whether all changes are told that make a baseline fit into memory, rather than the first.
        allow_numerics: Whether products in FP8 and gradients exchanged in bf16 may be searched.
        writable: What a script may change in earnest.
        any_network: Whether a script may connect anywhere after its first step.
    """

    target: str
    objective: str = "samples_per_second"
    at_least: float | None = None
    dollars_per_hour: float | None = None
    machine_name: str | None = None
    budget_seconds: float = 600.0
    device: DeviceKind | None = None
    out: Path | None = None
    effective_batch: int | str | None = None
    memory_target: float = 0.9
    utilization_target: float = 0.95
    pinned: dict[str, Scalar] = field(default_factory=dict)
    only: tuple[str, ...] | None = None
    max_workers: int | None = None
    explored: dict[str, tuple[Scalar, ...]] = field(default_factory=dict)
    warm_start: tuple[Path, ...] = ()
    sampler: str = "bayes"
    seed: int = 0
    storage: str | None = None
    resume: bool = False
    join: str | None = None
    ranks: int = 1
    fit: bool = False
    allow_numerics: bool = False
    evaluation: bool = False
    writable: tuple[Path, ...] = ()
    any_network: bool = False
    script: tuple[str, ...] = ()
    sent: Sent | None = None

    def of(self, sent: Sent) -> Options:
        """The same of a function."""
        return replace(self, target=sent.target, sent=sent)

    @property
    def goal(self) -> Objective:
        """What is maximised."""
        from autotune.measuring import objective_named

        return objective_named(self.objective, self.dollars_per_hour)

    @property
    def name(self) -> str:
        """What the files of its result are called, before their device."""
        from autotune.scripts.script import Script

        return stem_of(Script(self.script).place if self.script else self.target)


def parse_device(text: str) -> DeviceKind | None:
    """A device kind; None for an empty text."""
    from autotune.hardware import DeviceKind

    return one_of("--device", text, get_args(DeviceKind)) if text else None  # type: ignore[return-value]


def missing_device(device: str, hardware: Hardware) -> UsageError:
    """The error where a device is asked for that this machine does not have."""
    return UsageError(f"--device: expected one that this machine has ({', '.join(hardware.devices)}), got {device}")


def require_energy(objective: str, device: Gpu | Cpu | None, ranks: int = 1) -> None:
    """Refuses an objective that needs a counter of energy where there is none.

    Raises:
        UsageError: It cannot be measured here.
    """
    from autotune import hardware
    from autotune.measuring import SAMPLES_PER_JOULE

    if objective != SAMPLES_PER_JOULE.name or device is None:
        return
    if isinstance(device, hardware.Gpu) and ranks != 1:
        raise UsageError(
            f"--objective {objective}: expected one process, got {ranks}: only the first one's GPU is read; leave "
            "--nproc-per-node out"
        )
    if (why := hardware.why_no_energy(device)) is not None:
        raise UsageError(f"--objective {objective}: expected a counter of energy, got none: {why}")


def parse_comparison_format(text: str, out: Path | None, *, json: bool) -> str:
    """One of `COMPARISON_FORMATS`; for an empty text, the one that a file's ending names, a table without a file."""
    if json and text not in {"", "json"}:
        raise UsageError(f"--json and --format {text} contradict each other; give one of them")
    by_ending = out.suffix.lstrip(".") if out is not None else "table"
    typed = "json" if json else text
    chosen = one_of("--format", typed, COMPARISON_FORMATS) if typed else by_ending
    if out is not None and chosen not in COMPARISON_FORMATS[1:]:
        expected = "a file that ends in .md, .csv, .json or .html, or one of these as --format"
        raise _refusal("--out", expected, str(out), "choose one of them")
    return chosen


def parse_effective_batch(text: str) -> int | str | None:
    """A number, ``free``, or None for an empty text."""
    if text in {"", "free"}:
        return text or None
    return parse_whole("--effective-batch", text, 1, MOST_SAMPLES, "or pass 'free'")


def parse_ranks(text: str) -> int:
    """A number of ranks; 0 for ``auto``."""
    return 0 if text == "auto" else parse_whole("--nproc-per-node", text, 1, MOST_RANKS, "or 'auto'")


def ranks_on(hardware: Hardware, device: DeviceKind, wanted: int) -> int:
    """How many ranks train on a machine: as many as were wanted, else one a device, and one a CPU where that trains.

    Raises:
        UsageError: There are fewer devices than that, or no process groups for them.
    """
    if wanted == 1:
        return 1
    gpus = sum(gpu.kind == device for gpu in hardware.gpus)
    found = hardware.cpu.budget if device == "cpu" else gpus
    ranks = wanted or found
    if ranks > 1 and (device == "mps" or sys.platform != "linux"):
        raise UsageError("--nproc-per-node: expected 1 here, since several ranks need Linux, and a CPU or NVIDIA GPUs")
    if device != "cpu" and ranks > gpus:
        raise UsageError(f"--nproc-per-node: expected one rank a GPU, so {gpus} at most, got {ranks}; start fewer")
    return ranks


def parse_whole(option: str, text: str, least: int, most: int, remedy: str = "or leave it out") -> int:
    """A whole number from `least` to `most`; `remedy` is what else can be done."""
    digits = text.strip()
    # The length first: Python refuses to read numbers of thousands of digits.
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 20 and least <= int(digits) <= most):
        raise _refusal(option, f"a whole number from {least} to {most}", text, f"pass one, {remedy}")
    return int(digits)


def parse_samples(text: str) -> int | None:
    """How many samples, such as ``90M``, ``1.2e9`` or ``50000``; None for an empty text."""
    if not text:
        return None
    digits, factor = text.strip().replace(",", ""), 1.0
    if digits[-1:] in _THOUSANDS:
        digits, factor = digits[:-1], _THOUSANDS[digits[-1]]
    try:
        samples = factor * float(digits)
    except ValueError:
        samples = math.nan
    if not 1 <= samples <= MOST_TRAINED:
        raise _refusal("--samples", f"a number from 1 to {MOST_TRAINED:.0e}", text, "pass one such as 90M")
    return round(samples)


def parse_dollars(text: str) -> float | None:
    """The price of an hour, such as ``2.49`` or ``$2.49``; None for an empty text."""
    if not text:
        return None
    try:
        dollars = float(text.strip().removeprefix("$"))
    except ValueError:
        dollars = math.nan
    if not LEAST_DOLLARS <= dollars <= MOST_DOLLARS:  # NaN is neither
        expected = f"dollars an hour, from {LEAST_DOLLARS:g} to {MOST_DOLLARS:,.0f}"
        raise _refusal("--dollars-per-hour", expected, text, "pass a price such as 2.49")
    return dollars


def parse_name(option: str, text: str) -> str | None:
    """A name that fits into a table, without what steers a terminal; None for an empty text."""
    if len(text) > MAX_NAME_CHARACTERS:
        raise _refusal(option, f"a name of {MAX_NAME_CHARACTERS} characters at most", text, "shorten it")
    return " ".join(spelled(text).split()) or None


def parse_share(option: str, text: str, least: float = 0.0) -> float:
    """A fraction of at most 1, and not below the least that makes sense."""
    try:
        share = parse_fraction(text)
    except UnitError as error:
        raise UsageError(f"{option}: {error}; pass one such as 0.9") from None
    if share < least:
        raise _refusal(option, f"a fraction from {least} to 1", text, "pass one such as 0.9")
    return share


def parse_floor(text: str) -> float | None:
    """A share of the fastest rate; None for an empty text."""
    return parse_share("--at-least", text, LEAST_FLOOR) if text else None


def parse_pins(texts: Iterable[str]) -> dict[str, Scalar]:
    """The knobs of ``--pin knob=value``, each with its value."""
    from autotune.knobs import parse_knob

    pinned = {knob: parse_knob(knob, value) for knob, value in split_pairs("--pin", texts)}
    if "ranks" in pinned:
        raise UsageError(f"--pin: ranks are not pinned, but started; use --nproc-per-node {pinned['ranks']}")
    for knob, most in MOST_PINNED.items():
        value = pinned.get(knob)
        if isinstance(value, int) and value > most:
            raise UsageError(f"--pin: expected {knob} of {most} at most, got {value}; pin fewer")
    return pinned


def parse_only(text: str) -> tuple[str, ...] | None:
    """Knob names; None for an empty text."""
    from autotune.knobs import KNOB_NAMES, unknown_knob

    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if unknown := [name for name in names if name not in KNOB_NAMES]:
        raise UsageError(f"--only: {unknown_knob(unknown[0])}")
    return names or None


def parse_writable(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The paths of ``--writable``; each exists."""
    for path in paths:
        if not path.exists():
            raise _refusal("--writable", "a file or folder that exists", str(path), "create it, or leave it out")
    return tuple(paths)


def parse_explored(texts: Iterable[str]) -> dict[str, tuple[Scalar, ...]]:
    """The arguments of ``--explore name=a,b``, each with its values."""
    return {name: parse_values(name, values) for name, values in split_pairs("--explore", texts)}


def parse_values(name: str, text: str) -> tuple[Scalar, ...]:
    """The values of ``--explore name=a,b``."""
    from autotune.knobs import parse_scalar

    values = tuple(dict.fromkeys(parse_scalar(part) for part in text.split(",") if part.strip()))
    if not values:
        raise _refusal(f"--explore {name}", "values separated by commas", text, f"pass some, as in {name}=256,384")
    if len(values) > MOST_VALUES:
        raise UsageError(
            f"--explore {name}: expected {MOST_VALUES} values at most, got {len(values)}; "
            "pass fewer, since each costs a burst"
        )
    return values


def split_pairs(option: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    """The two sides of each ``name=value``."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise _refusal(option, "name=value", text, "pass both")
        if len(longest := max([name, *value.split(",")], key=len)) > MOST_CHARACTERS:
            raise _refusal(option, f"names and values of {MOST_CHARACTERS} characters at most", longest, "shorten it")
        pairs.append((name.strip(), value.strip()))
    return pairs


def one_of(option: str, text: str, allowed: Iterable[str]) -> str:
    """The text, when it is one of the allowed words."""
    if text not in tuple(allowed):
        raise _refusal(option, f"one of {', '.join(allowed)}", text, "pass one of them")
    return text


def _refusal(option: str, expected: str, got: str, remedy: str) -> UsageError:
    return UsageError(f"{option}: expected {expected}, got {quoted(got)}; {remedy}")
