"""The command line: its options, its exit status, and nothing else. Whatever is heavy is imported by the command."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

from autotune.errors import AutotuneError, Interrupted, UsageError
from autotune.units import parse_duration, parse_fraction

if TYPE_CHECKING:
    from autotune.config import Scalar
    from autotune.hardware.model import DeviceKind
    from autotune.tune import Options

STARTED = time.monotonic()
"""The budget counts from here, not from the start of the process: where a shell executes its last command in its own
place, that is as old as the shell."""
INTERRUPTED_STATUS = 130
SAMPLERS = ("tpe", "gp", "random")
PROBE_SECONDS = 120.0
CHECK_BUDGET = "50s"
Command = TypeVar("Command", bound=Callable[..., Any])

app = typer.Typer(
    name="autotune",
    help="Finds the fastest correct way to train a PyTorch model on the machine at hand, and proves it.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def reported(command: Command) -> Command:
    """Turns our errors into one sentence on stderr and their exit status."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except AutotuneError as error:
            from autotune.console import error_lines, make_console

            make_console().print(error_lines(error))
            raise typer.Exit(error.exit_status) from None

    return run  # type: ignore[return-value]


@app.callback(invoke_without_command=True)
@reported
def tune(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help="What to tune: module:build, or path/to/file.py:build.", metavar="TARGET")
    ] = "",
    budget: Annotated[str, typer.Option(help="Wall-clock time for everything: 90s, 10m, 1h30m.")] = "10m",
    device: Annotated[str, typer.Option(help="cpu, cuda, rocm or mps; the first accelerator when left out.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="The result file; results/<machine>/<workload>.json when left out.")
    ] = None,
    effective_batch: Annotated[
        str, typer.Option(help="Batch size × accumulation: a number, or 'free'; the baseline's when left out.")
    ] = "",
    memory_target: Annotated[str, typer.Option(help="Share of the memory that may be used.")] = "0.9",
    utilization_target: Annotated[
        str, typer.Option(help="How busy the GPU must be, and how near its ceiling, for the search to stop.")
    ] = "0.95",
    pin: Annotated[
        list[str] | None, typer.Option(help="Hold a knob at a value; repeat for more.", metavar="KNOB=VALUE")
    ] = None,
    only: Annotated[str, typer.Option(help="Search these knobs only.", metavar="KNOB,KNOB")] = "",
    max_workers: Annotated[int | None, typer.Option(min=0, help="Never use more DataLoader workers.")] = None,
    explore: Annotated[
        list[str] | None,
        typer.Option(help="Values for build's own keyword argument; repeat for more.", metavar="NAME=A,B"),
    ] = None,
    sampler: Annotated[str, typer.Option(help="tpe, gp or random.")] = "tpe",
    seed: Annotated[int, typer.Option(help="Of the sampler and of the order of bursts.")] = 0,
    storage: Annotated[
        str, typer.Option(help="Database URL for the trials; a journal beside the result when left out.")
    ] = "",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run; no burst is repeated.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Tunes a model; without a sub-command, --model is required."""
    if context.invoked_subcommand is not None:
        return
    if version:
        from autotune import __version__

        typer.echo(__version__)
        return
    if not model:
        raise UsageError("--model is required, such as --model train:build; autotune --help shows the rest")
    from autotune.config import parse_knob
    from autotune.tune import Options

    options = Options(
        target=model,
        budget_seconds=parse_duration(budget),
        device=parse_device(device),
        out=out,
        effective_batch=parse_effective_batch(effective_batch),
        memory_target=parse_fraction(memory_target),
        utilization_target=parse_fraction(utilization_target),
        pinned={knob: parse_knob(knob, value) for knob, value in split_pairs("--pin", pin or ())},
        only=parse_only(only),
        max_workers=max_workers,
        explored={name: parse_values(name, values) for name, values in split_pairs("--explore", explore or ())},
        sampler=one_of("--sampler", sampler, SAMPLERS),
        seed=seed,
        storage=storage or None,
        resume=resume,
    )
    raise typer.Exit(run_tuning(options, as_json=json, quiet=quiet))


@app.command()
@reported
def probe(
    device: Annotated[str, typer.Option(help="Measure this one: cpu, cuda, rocm or mps.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Shows what this machine has, and what limits it."""
    from autotune.burst.isolation import Isolation
    from autotune.burst.protocol import Request
    from autotune.burst.runner import result_of
    from autotune.hardware import merge, probe_host

    with Isolation() as isolation:
        isolation.start(PROBE_SECONDS)
        report = result_of(isolation.run(Request(job="probe", device=parse_device(device)), PROBE_SECONDS), "probing")
    hardware = merge(probe_host(), report)
    if json:
        typer.echo(hardware.model_dump_json(indent=2))
        return
    from autotune.console import make_console
    from autotune.console_hardware import hardware_table

    make_console().print(hardware_table(hardware))


@app.command()
@reported
def show(
    file: Annotated[Path, typer.Argument(help="A result file.")],
    why: Annotated[bool, typer.Option("--why", help="Show every burst, and the reason for which it was run.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Shows one result."""
    from autotune.result import read_result

    result = read_result(file)
    if json:
        typer.echo(result.model_dump_json(by_alias=True, indent=2))
        return
    from autotune.console import make_console, result_table, usage_lines

    console = make_console()
    if why:
        from autotune.console_profile import profile_tables
        from autotune.console_trials import trials_table

        console.print(trials_table(result))
        console.print(profile_tables(result))
        return
    console.print(result_table(result))
    console.print(usage_lines(file))


@app.command()
@reported
def compare(
    paths: Annotated[list[Path], typer.Argument(help="Result files, or folders that hold them.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Shows the same workload across machines."""
    from autotune.compare import compare as compare_results
    from autotune.compare import load_results

    comparison = compare_results(*load_results(paths))
    if json:
        typer.echo(comparison.model_dump_json(indent=2))
        return
    from autotune.console import comparison_table, make_console

    make_console().print(comparison_table(comparison))


@app.command()
@reported
def check(
    file: Annotated[Path, typer.Argument(help="A result file.")],
    model: Annotated[str, typer.Option(help="The workload, where it is not found as the file names it.")] = "",
    budget: Annotated[str, typer.Option(help="Wall-clock time for everything.")] = CHECK_BUDGET,
    json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")] = False,
) -> None:
    """Does a result still hold here? Exit status: 0 it does, 1 it has drifted, 3 it no longer fits."""
    from autotune.check import STATUS, check_result
    from autotune.console import check_lines, make_console
    from autotune.progress import make_progress
    from autotune.result import read_result
    from autotune.search.interrupts import Interrupts
    from autotune.search.stopping import Budget

    result = read_result(file)
    clock = Budget(parse_duration(budget), started=STARTED)
    console = make_console()
    with Interrupts() as interrupts, make_progress(console, quiet=quiet) as progress:
        try:
            found = check_result(result, model or result.workload.target, clock, progress, interrupts)
        except Interrupted:
            raise typer.Exit(INTERRUPTED_STATUS) from None
    if json:
        typer.echo(found.model_dump_json(indent=2))
    if not quiet:
        console.print(check_lines(found))
    raise typer.Exit(STATUS[found.verdict])


@app.command()
@reported
def schema() -> None:
    """Prints the JSON Schema of the result file."""
    import json

    from autotune.result import Result

    typer.echo(json.dumps(Result.model_json_schema(by_alias=True, mode="serialization"), indent=2))


def run_tuning(options: Options, *, as_json: bool, quiet: bool) -> int:
    """Tunes, writes the result, shows it; returns the exit status."""
    from autotune.console import make_console, result_table, usage_lines
    from autotune.progress import make_progress
    from autotune.result import keep_result
    from autotune.search.interrupts import Interrupts
    from autotune.search.stopping import Budget
    from autotune.tune import Tuning

    console = make_console()
    budget = Budget(options.budget_seconds, started=STARTED)
    with Interrupts() as interrupts:
        try:
            with make_progress(console, quiet=quiet) as progress:
                result, path = Tuning(options, progress, budget, interrupts).run()
        except Interrupted:
            console.print("interrupted before the first burst had ended; nothing was written")
            return INTERRUPTED_STATUS
        with interrupts.held():
            place, failure = keep_result(result, path)
        if failure is not None or not quiet:
            console.print(result_table(result))
        if place is not None and not quiet:
            console.print(usage_lines(place))
        if as_json:
            typer.echo(result.model_dump_json(by_alias=True, indent=2))
        if failure is not None:
            raise failure
    return INTERRUPTED_STATUS if result.status == "partial" else 0


def parse_device(text: str) -> DeviceKind | None:
    """A device kind; None for an empty text."""
    from autotune.hardware.model import DeviceKind

    return one_of("--device", text, get_args(DeviceKind)) if text else None  # type: ignore[return-value]


def parse_effective_batch(text: str) -> int | str | None:
    """A number, ``free``, or None for an empty text."""
    if text in {"", "free"}:
        return text or None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--effective-batch expects a whole number above 0, or 'free', but {text!r} came")
    return int(text)


def parse_only(text: str) -> tuple[str, ...] | None:
    """Knob names; None for an empty text."""
    from autotune.config import KNOBS

    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if unknown := [name for name in names if name not in KNOBS]:
        raise UsageError(f"--only: {unknown[0]!r} is no knob; the knobs are {', '.join(KNOBS)}")
    return names or None


def parse_values(name: str, text: str) -> tuple[Scalar, ...]:
    """The values of ``--explore name=a,b``."""
    from autotune.config import parse_scalar

    values = tuple(dict.fromkeys(parse_scalar(part) for part in text.split(",") if part.strip()))
    if not values:
        raise UsageError(f"--explore {name}= expects values separated by commas, such as {name}=256,384")
    return values


def split_pairs(option: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    """The two sides of each ``name=value``."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise UsageError(f"{option} expects name=value, but {text!r} came")
        pairs.append((name.strip(), value.strip()))
    return pairs


def one_of(option: str, text: str, allowed: Iterable[str]) -> str:
    """The text, when it is one of the allowed words."""
    if text not in tuple(allowed):
        raise UsageError(f"{option} expects one of {', '.join(allowed)}, but {text!r} came")
    return text


def main() -> None:
    """Entry of the command ``autotune``."""
    app(prog_name="autotune")
