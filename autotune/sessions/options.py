"""The options of a tuning: one model, from which the command line, `autotune.tune` and MCP's tools are made.

A command line passes texts; Python and agents pass numbers, lists and mappings. Each field parses both, so that names,
defaults, ranges and errors are the same everywhere.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import typer
from annotated_types import Ge, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from autotune.errors import AutotuneError, UsageError
from autotune.files import stem_of
from autotune.sandbox.system import LINUX
from autotune.sessions.outputs import require_result_place
from autotune.stored import DeviceKind, Dollars
from autotune.units import parse_duration, parse_fraction, quoted
from autotune.wording import spelled

if TYPE_CHECKING:
    from autotune.hardware import Cpu, Gpu, Hardware
    from autotune.knobs import Scalar
    from autotune.measuring import Objective

MOST_SAMPLES = 2**31 - 1
"""The largest effective batch: a loader's index ends there, and finding the divisors of more takes minutes."""
MOST_SEED = 2**32 - 1
"""The largest seed of numpy's random generator, from which the samplers draw."""
MOST_VALUES = 64
"""Most values to explore for one argument: each costs a burst or more, and a search has a few hundred."""
MOST_RANKS = 256
"""More than the devices of any machine: each rank is a process that holds the model."""
MOST_CHARACTERS = 200
"""Length limit of one typed value, which appears in every row of the result's tables."""
MOST_TRAINED = 1e15
"""Most samples of a training: no machine processes more in its lifetime."""
SHORT = {"model": "-m", "budget": "-b", "out": "-o", "quiet": "-q"}
"""Short forms of options, the same for every command that has them."""
MAX_NAME_CHARACTERS = 60
"""Length limit of a machine's name, which appears in each row of a comparison."""
_THOUSANDS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Takes:
    """How a type's values are written: `sample` is the placeholder in ``--help``, and `noun` the word in errors."""

    sample: str
    noun: str = ""


@dataclass(frozen=True)
class Only:
    """Marks an option that only `models`, or only `scripts`, have, with the reason why the other kind lacks it."""

    kind: Literal["models", "scripts"]
    reason: str


def _typed(value: Any) -> str:
    """The text that a user would type for a value: one word, or several separated by commas."""
    from autotune.knobs import format_scalar

    if value is None or isinstance(value, (str, bool, int, float)):
        return format_scalar(value)
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if not isinstance(value, Collection) or isinstance(value, (bytes, Mapping)):
        raise UsageError(f"expected a text, a number or a list of them, got {value!r:.60}; pass one, or leave it out")
    return ",".join(map(_typed, value))


def _several(value: Any) -> Any:
    """A single text or path as a list of one; other values unchanged."""
    return [value] if isinstance(value, (str, os.PathLike)) else value


def _reader(parse: Callable[[Any], Any], written: Any) -> BeforeValidator:
    """Parses an option from a value of the JSON type `written`."""

    def read(value: Any) -> Any:
        try:
            return parse(value)
        except AutotuneError as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(read, json_schema_input_type=written)


def _text(parse: Callable[[str], Any], written: Any = float | str) -> BeforeValidator:
    """Parses an option from a text, as a user would type it."""
    return _reader(lambda value: parse(_typed(value)), written)


def _number(text: str) -> float:
    """A number such as ``90M``, ``1.2e9`` or ``$2.49``; NaN for other texts, which every range excludes."""
    digits, factor = text.strip().removeprefix("$").replace(",", ""), 1.0
    if digits[-1:] in _THOUSANDS:
        digits, factor = digits[:-1], _THOUSANDS[digits[-1]]
    try:
        return factor * float(digits)
    except ValueError:
        return float("nan")


def _is_empty(value: Any) -> bool:
    """Whether a value counts as leaving its option out."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, Collection) and len(value) == 0)


def _name(text: str) -> str:
    """A name that fits into a table, without control characters."""
    if len(text) > MAX_NAME_CHARACTERS:
        raise UsageError(f"expected a name of {MAX_NAME_CHARACTERS} characters at most, got {quoted(text)}; shorten it")
    return " ".join(spelled(text).split())


def _pairs(given: Any, expected: str) -> Iterator[tuple[str, str]]:
    """The two sides of each ``name=value``, or of a mapping's items. Each name may occur once.

    Raises:
        UsageError: The text is not of the form `expected`.
    """
    if isinstance(given, Mapping):
        given = [f"{name}{'' if str(value).startswith('<=') else '='}{_typed(value)}" for name, value in given.items()]
    if not isinstance(several := _several(given), Collection):
        raise UsageError(f"expected {expected}, got {given!r:.60}; pass a text, a list or a mapping of them")
    names: set[str] = set()
    for text in map(_typed, several):
        name, equals, value = text.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise UsageError(f"expected {expected}, got {quoted(text)}; pass it in this form")
        if len(longest := max([name, *value.split(",")], key=len)) > MOST_CHARACTERS:
            raise UsageError(
                f"expected names and values of {MOST_CHARACTERS} characters at most, got {quoted(longest)}; shorten it"
            )
        if (alone := name.removesuffix("<").strip()) in names:
            raise UsageError(f"expected {alone} once, got it twice; pass one of them")
        names.add(alone)
        yield name.strip(), value.strip()


def _pins(given: Any) -> dict[str, Scalar]:
    """The pinned knobs: ``knob=value`` gives the value, and ``knob<=number`` gives ``<=number``."""
    from autotune.knobs import at_most, check_values, parse_knob

    pinned: dict[str, Scalar] = {}
    expected = "knob=value, or knob<=number"
    for name, text in _pairs(given, expected):
        knob = name.removesuffix("<").strip()
        if knob.endswith(">"):
            raise UsageError(f"expected {expected}, got {quoted(f'{name}={text}')}; only a highest number can be set")
        value = parse_knob(knob, text)
        if knob == "ranks":
            raise UsageError(f"ranks are not pinned, but started; use --nproc-per-node {text}")
        if name.endswith("<"):
            if type(value) is not int:
                raise UsageError(f"expected a whole number after {knob}<=, got {quoted(text)}; pin {knob}={text}")
            if getattr(check_values({}), knob) is None:  # None would satisfy every limit
                raise UsageError(f"{knob}<={text} limits nothing: torch chooses the number itself; pin {knob}={text}")
            value = at_most(value)
        pinned[knob] = value
    return pinned


def _knobs(text: str) -> tuple[str, ...]:
    """The knob names in a text, separated by commas."""
    from autotune.knobs import KNOB_NAMES, unknown_knob

    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UsageError(f"expected names of knobs separated by commas, got {quoted(text)}; pass some, or leave it out")
    if unknown := [name for name in names if name not in KNOB_NAMES]:
        raise UsageError(unknown_knob(unknown[0]))
    return names


def _explored(given: Any) -> dict[str, tuple[Scalar, ...]]:
    """The arguments in ``name=a,b``, each with its values."""
    from autotune.knobs import parse_scalar

    explored = {}
    for name, text in _pairs(given, "name=a,b"):
        values = tuple(dict.fromkeys(parse_scalar(part) for part in text.split(",") if part.strip()))
        if not values:
            raise UsageError(
                f"expected values separated by commas for {name}, got {quoted(text)}; pass some, as in {name}=256,384"
            )
        if len(values) > MOST_VALUES:
            raise UsageError(
                f"expected {MOST_VALUES} values at most, got {len(values)}; pass fewer, since each costs a burst"
            )
        explored[name] = values
    return explored


def _existing(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Refuses paths that do not exist."""
    for path in paths:
        if not path.exists():
            raise ValueError(f"expected a file or folder that exists, got {str(path)!r}; create it, or leave it out")
    return paths


def _url(text: str) -> str:
    """Refuses what is no URL of a database; what may hold a password is not shown."""
    from sqlalchemy.engine import make_url  # takes long to import
    from sqlalchemy.exc import SQLAlchemyError

    kind, separator, _ = text.partition("://")
    with contextlib.suppress(SQLAlchemyError, ValueError, ImportError):
        make_url(text).get_dialect()
        return text
    got = "another text" if "@" in kind else f"{quoted(kind + separator)}{'…' if separator else ''}"
    raise ValueError(f"expected the URL of a database, such as sqlite:///trials.db, got {got}; pass one")


Duration = Annotated[float, _text(parse_duration), Takes("TIME")]
Share = Annotated[float, Field(ge=0.01, le=1), _text(parse_fraction), Takes("SHARE", "a fraction")]
Price = Annotated[Dollars, _text(_number), Takes("DOLLARS", "dollars an hour")]
Samples = Annotated[
    float, Field(ge=1, le=MOST_TRAINED), AfterValidator(round), _text(_number), Takes("NUMBER", "a number")
]
Name = Annotated[str, _text(_name, str), Takes("NAME")]
Paths = Annotated[tuple[Path, ...], _reader(_several, list[Path]), Takes("FILE", "paths of files")]
Existing = Annotated[
    tuple[Path, ...],
    _reader(_several, list[Path]),
    AfterValidator(_existing),
    Takes("PATH", "paths of files or folders"),
]
Switch = Annotated[bool, Field(strict=True)]
NOT_A_SWITCH = BeforeValidator(lambda value: str(value) if isinstance(value, bool) else value)
"""Makes a number refuse True, which pydantic would read as 1."""


_UNPROTECTED = Only("scripts", "nothing keeps a build() from files or the network")


class Options(BaseModel):
    """The options of a tuning. A field with an alias has it as its name on the command line."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        populate_by_name=True,
        arbitrary_types_allowed=True,
        defer_build=True,
    )

    budget_seconds: Duration = Field(
        default=cast("Any", "10m"), alias="budget", description="Wall-clock time for the whole run: 90s, 10m, 1h30m."
    )
    objective: Literal["samples_per_second", "samples_per_joule"] = Field(
        default="samples_per_second", description="What is maximised; joules are those of the device."
    )
    at_least: Share | None = Field(
        default=None,
        description="With samples_per_joule: no config below this share of the fastest config's rate replaces the "
        "baseline.",
    )
    dollars_per_hour: Price | None = Field(
        default=None, description="What this machine costs an hour, for comparisons."
    )
    machine_name: Name | None = Field(
        default=None, description="Name of this machine in comparisons; its hardware when left out."
    )
    device: DeviceKind | None = Field(default=None, description="Default: the first accelerator.")
    out: Path | None = Field(default=None, description="The result's .json file; in results/<machine> when left out.")
    effective_batch: Annotated[int, Field(ge=1, le=MOST_SAMPLES), NOT_A_SWITCH] | Literal["free"] | None = Field(
        default=None,
        description="Batch size × accumulation; free: any, which changes what a step learns. Default: the baseline's.",
    )
    memory_target: Share = Field(default=0.9, description="The share of memory that may be used.")
    utilization_target: Share = Field(
        default=0.95, description="How busy the GPU and how near its ceiling training must be for the search to stop."
    )
    # a value, or ``<=`` and a number, by knob
    pinned: Annotated[dict[str, Any], _reader(_pins, dict[str, Any] | list[str]), Takes("KNOB=VALUE")] = Field(
        default={}, alias="pin", description="Hold a knob, or limit it: 'num_workers<=4'; may be repeated."
    )
    only: Annotated[tuple[str, ...], _text(_knobs, list[str] | str), Takes("KNOB,KNOB")] | None = Field(
        default=None, description="Search only these knobs."
    )
    allow_numerics: Switch = Field(
        default=False, description="Also search products in FP8, and gradients exchanged in bf16."
    )
    explored: Annotated[
        dict[str, Any],
        _reader(_explored, dict[str, list[Any]] | list[str]),
        Takes("NAME=A,B"),
        Only("models", "a script has no build() whose arguments could vary"),
    ] = Field(
        default={},
        alias="explore",
        description="Values for an argument of build(), searched also beside --only; may be repeated.",
    )
    warm_start: Paths = Field(default=(), description="Try another machine's result first; may be repeated.")
    sampler: Literal["bayes", "tpe", "random"] = Field(
        default="bayes", description="What proposes candidates; tpe is Optuna's."
    )
    seed: Annotated[int, Field(ge=0, le=MOST_SEED), NOT_A_SWITCH] = Field(
        default=0, description="Seeds the sampler and the order of bursts."
    )
    storage: Annotated[str, AfterValidator(_url), Takes("URL")] | None = Field(
        default=None, description="Database for the trials; a file by the result when left out."
    )
    join: Name | None = Field(
        default=None, description="Share the study of this name in --storage with other machines of this kind."
    )
    resume: Switch = Field(
        default=False, description="Continue an interrupted run; only bursts that timed out are repeated."
    )
    ranks: Annotated[
        Annotated[int, Field(ge=1, le=MOST_RANKS), NOT_A_SWITCH] | Literal["auto"],
        Only("models", "a script's own command starts its processes, as in -- torchrun --nproc-per-node 4 train.py"),
    ] = Field(
        default=1,
        alias="nproc_per_node",
        description="Number of processes that train together, as under torchrun; auto: one per device.",
    )
    evaluation: Annotated[Switch, Only("models", "a script evaluates in its own way, which cannot run by itself")] = (
        Field(default=False, description="Also find the batch size for evaluation.")
    )
    writable: Annotated[Existing, _UNPROTECTED] = Field(
        default=(), description="A file or folder that bursts may change in earnest; may be repeated."
    )
    any_network: Annotated[Switch, _UNPROTECTED] = Field(
        default=False,
        alias="network",
        description="Let bursts connect anywhere after their first step, not only to their data.",
    )
    target: str  # name in the result: a target, a script's text, or a function's name
    script: tuple[str, ...] = ()  # the training command; empty if no script is tuned
    sent: Any = None  # a function that only this process has; None if none is tuned

    @classmethod
    def parse(cls, given: Mapping[str, Any], **what: Any) -> Options:
        """Parses options that were typed, or passed from Python or by an agent.

        Args:
            given: Values by option name, with ``_`` for ``-``. None, a blank text or an empty list leaves one out.
            what: The workload: `target`, `script`, `sent`.

        Raises:
            UsageError: An option is invalid.
        """
        values = {name: value for name, value in given.items() if not _is_empty(value)}
        try:
            return cls.model_validate({**values, **what})
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            field = OFFERED[name]
            raise _refusal(name, error, values[name], field.annotation, field.metadata) from None

    @model_validator(mode="after")
    def _agree(self) -> Options:
        self._suit_the_workload()
        if self.out is not None:
            require_result_place(self.out)
        if self.join and not self.storage:
            raise UsageError("--join: expected --storage with the URL of a database that all machines reach; pass both")
        if self.join and self.resume:
            raise UsageError("--join and --resume contradict each other; a study that is shared is continued as it is")
        if self.at_least is not None and self.goal.is_rate:
            raise UsageError(
                "--at-least: expected an objective by which the fastest config need not be the best, got "
                f"{self.objective}; pass --objective samples_per_joule, or leave it out"
            )
        return self

    def _suit_the_workload(self) -> None:
        for name in sorted(FOR_MODELS if self.script else FOR_SCRIPTS):
            if getattr(self, NAMES[name]) != OFFERED[name].default:
                raise unsuited(name)
        if self.script and isinstance(self.effective_batch, int):
            raise UsageError(
                "--effective-batch: expected 'free' for a script, which accumulates by itself, got "
                f"{self.effective_batch}; leave it out, or pass 'free'"
            )

    @property
    def goal(self) -> Objective:
        """The objective that is maximised."""
        from autotune.measuring import objective_named

        return objective_named(self.objective)

    @property
    def name(self) -> str:
        """File name of the result, without device and ending."""
        from autotune.scripts.script import Script

        return stem_of(Script(self.script).place if self.script else self.target)


NAMES = {field.alias or name: name for name, field in Options.model_fields.items() if field.description}
"""The name of the field of each option."""
OFFERED: Mapping[str, FieldInfo] = {option: Options.model_fields[name] for option, name in NAMES.items()}


def _options_for(kind: str) -> frozenset[str]:
    marks = ((option, entry) for option, field in OFFERED.items() for entry in field.metadata)
    return frozenset(option for option, entry in marks if isinstance(entry, Only) and entry.kind == kind)


FOR_MODELS = _options_for("models")
FOR_SCRIPTS = _options_for("scripts")
NOT_FOR_AGENTS = frozenset(option for option, field in OFFERED.items() if _UNPROTECTED in field.metadata)
"""The options that lift a protection of scripts."""


def offering(hidden: Collection[str], without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Replaces a command's ``**options`` by the options of a tuning.

    Args:
        hidden: Those that ``--help`` leaves out: `Options` refuses them, and says why.
        without: Those that the command declares itself.
    """

    def offer(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        keyword = inspect.Parameter.KEYWORD_ONLY
        named = [
            inspect.Parameter(
                name, keyword, default=default_of(field), annotation=_typer_option(name, field, hidden=name in hidden)
            )
            for name, field in OFFERED.items()
            if name not in without
        ]
        kept = [parameter for parameter in own.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        first = [parameter for parameter in kept if parameter.kind is not keyword]
        last = [parameter for parameter in kept if parameter.kind is keyword]
        command.__signature__ = own.replace(parameters=[*first, *named, *last])  # type: ignore[attr-defined]
        return command

    return offer


def read(hint: Any, name: str, given: Any) -> Any:
    """Parses one option of the type `hint`; None if it is left out.

    Raises:
        UsageError: The value is invalid.
    """
    if _is_empty(given):
        return None
    try:
        return TypeAdapter(hint).validate_python(given)
    except ValidationError as error:
        raise _refusal(name, error, given, hint) from None


def option_of(name: str) -> str:
    """An option as it is typed: ``--memory-target``."""
    return f"--{name.replace('_', '-')}"


def unsuited(name: str) -> UsageError:
    """The error for an option that the other kind of workload has."""
    only = next(entry for entry in OFFERED[name].metadata if isinstance(entry, Only))
    return UsageError(f"{option_of(name)} is for {only.kind}: {only.reason}; leave it out")


def words_of(name: str) -> tuple[str, ...]:
    """All words for an option on the command line: ``--budget``, ``-b``."""
    return (option_of(name), *([SHORT[name]] if name in SHORT else []))


def help_of(field: FieldInfo) -> str:
    """Help text of an option: its description, and the range of its values."""
    ranges = [bounds for part, metadata in _parts(field.annotation, field.metadata) if (bounds := _range(metadata))]
    return " ".join([str(field.description), *(f"{bounds[0].upper()}{bounds[1:]}." for bounds in ranges)])


def schema_of(name: str) -> dict[str, Any]:
    """JSON Schema of an option, including its help text."""
    schema: dict[str, Any] = Options.model_json_schema()["properties"][name]
    return {key: value for key, value in schema.items() if key != "title"} | {"description": help_of(OFFERED[name])}


def _typer_option(name: str, field: FieldInfo, *, hidden: bool) -> Any:
    """An option for typer: a text, a list of texts, or a switch."""
    if field.annotation is bool:
        return Annotated[bool, typer.Option(*words_of(name), help=help_of(field), hidden=hidden)]
    sample = "|".join(_sample(part, metadata) for part, metadata in _parts(field.annotation, field.metadata))
    kind = list[str] | None if repeats(field) else str | None
    return Annotated[kind, typer.Option(*words_of(name), help=help_of(field), metavar=sample, hidden=hidden)]


def default_of(field: FieldInfo) -> Any:
    """Default of an option, as a command line and a call show it."""
    return None if repeats(field) else field.default


def repeats(field: FieldInfo) -> bool:
    """Whether an option may be passed several times."""
    return field.default in ((), {})


def _parts(hint: Any, metadata: Collection[Any] = ()) -> Iterator[tuple[Any, list[Any]]]:
    """The types that a value may have, each with its metadata."""
    if get_origin(hint) is Annotated:
        hint, *own = get_args(hint)
        metadata = [*own, *metadata]
    if get_origin(hint) in {Union, UnionType}:
        for part in get_args(hint):
            yield from _parts(part, metadata)
    elif hint is not NoneType:
        inner = (entry.metadata if isinstance(entry, FieldInfo) else [entry] for entry in metadata)
        yield hint, [*itertools.chain.from_iterable(inner)]


def _sample(part: Any, metadata: Collection[Any]) -> str:
    """Placeholder for a value in ``--help``."""
    if get_origin(part) is Literal:
        return "|".join(get_args(part))
    samples = (entry.sample for entry in metadata if isinstance(entry, Takes))
    return next(samples, {int: "NUMBER", Path: "FILE"}.get(part, ""))


def _range(metadata: Collection[Any]) -> str:
    bounds = (entry for entry in metadata if isinstance(entry, (Ge, Le)))
    ends: list[Any] = [bound.ge if isinstance(bound, Ge) else bound.le for bound in bounds]
    return f"from {min(ends):.10g} to {max(ends):.10g}" if ends else ""


def _expected(part: Any, metadata: Collection[Any]) -> str:
    """The expected value, for an error message."""
    if get_origin(part) is Literal:
        words = get_args(part)
        return f"one of {', '.join(words)}" if len(words) > 1 else repr(*words)
    nouns = {int: "a whole number", bool: "True or False", str: "a text", Path: "the path of a file"}
    noun = next((entry.noun for entry in metadata if isinstance(entry, Takes) and entry.noun), nouns.get(part))
    return " ".join(filter(None, [noun, _range(metadata)]))


def _refusal(name: str, error: ValidationError, given: Any, hint: Any, metadata: Collection[Any] = ()) -> UsageError:
    """The error for an option's value: its parser's own message, else the expected type and range."""
    first = error.errors()[0]
    if first["type"] == "value_error":
        return UsageError(f"{option_of(name)}: {first['ctx']['error']}")
    expected = " or ".join(_expected(*part) for part in _parts(hint, metadata))
    got = quoted(given) if isinstance(given, str) else f"{given!r:.60}"
    return UsageError(f"{option_of(name)}: expected {expected}, got {got}; pass one, or leave it out")


def missing_device(device: str, hardware: Hardware) -> UsageError:
    """The error for a device that this machine does not have."""
    from autotune.hardware import UNUSABLE

    why = hardware.unread.get(UNUSABLE)
    return UsageError(
        f"--device: expected one that this machine has ({', '.join(hardware.devices)}), got {device}"
        f"{f': {why}' if why else ''}; pass one of these, or leave it out"
    )


def require_energy(objective: str, device: Gpu | Cpu | None, ranks: int = 1) -> None:
    """Refuses an objective that needs an energy counter if there is none.

    Raises:
        UsageError: The objective cannot be measured here.
    """
    from autotune.hardware import Gpu, why_no_energy
    from autotune.measuring import SAMPLES_PER_JOULE

    if objective != SAMPLES_PER_JOULE.name or device is None:
        return
    if isinstance(device, Gpu) and ranks != 1:
        raise UsageError(
            f"--objective {objective}: expected one process, got {ranks}: only the first one's GPU is read; train "
            "in one process"
        )
    if (why := why_no_energy(device)) is not None:
        raise UsageError(f"--objective {objective}: expected an energy counter, got none: {why}")


def ranks_on(hardware: Hardware, device: DeviceKind, requested: int | Literal["auto"]) -> int:
    """Number of ranks on a machine. ``auto`` means one per GPU, or one per CPU if the CPU trains.

    Raises:
        UsageError: There are fewer devices, or no process groups for them.
    """
    if requested == 1:
        return 1
    gpus = sum(gpu.kind == device for gpu in hardware.gpus)
    devices = hardware.cpu.budget if device == "cpu" else gpus
    ranks = devices if requested == "auto" else requested
    if ranks > 1 and (device == "mps" or not LINUX):
        raise UsageError("--nproc-per-node: expected 1 here, since several ranks need Linux, and a CPU or NVIDIA GPUs")
    if device != "cpu" and ranks > gpus:
        raise UsageError(f"--nproc-per-node: expected one rank a GPU, so {gpus} at most, got {ranks}; start fewer")
    return ranks
