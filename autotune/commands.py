"""The sub-commands, which look at results and at the machine. Whatever is heavy is imported by the command."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from autotune.errors import AutotuneError, Interrupted, NothingFeasibleError, UsageError
from autotune.options import parse_comparison_format, parse_device
from autotune.units import parse_duration

if TYPE_CHECKING:
    from autotune.compare import Comparison

STARTED = time.monotonic()
"""The budget counts from here, not from the start of the process: where a shell executes its last command in its own
place, that is as old as the shell."""
INTERRUPTED_STATUS = 130
PROBE_SECONDS, PEAK_SECONDS = 120.0, 1.5
CHECK_BUDGET, CROSS_BUDGET = "50s", "60s"
Command = TypeVar("Command", bound=Callable[..., Any])

commands = typer.Typer()


def reported(command: Command) -> Command:
    """Turns our errors into one sentence on stderr and their exit status, and an interruption into its own."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except AutotuneError as error:
            from autotune.console import error_lines, make_console

            make_console().print(error_lines(error))
            raise typer.Exit(error.exit_status) from None
        except Interrupted:
            raise typer.Exit(INTERRUPTED_STATUS) from None

    return run  # type: ignore[return-value]


@commands.command()
@reported
def probe(
    device: Annotated[str, typer.Option(help="Measure this one: cpu, cuda, rocm or mps.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Shows what this machine has, and what limits it."""
    from autotune.burst.isolation import Isolation
    from autotune.burst.runner import look_at_machine

    with Isolation() as isolation:
        isolation.start(PROBE_SECONDS)
        hardware = look_at_machine(isolation, PROBE_SECONDS, device=parse_device(device), peak_seconds=PEAK_SECONDS)
    if json:
        typer.echo(hardware.model_dump_json(indent=2))
        return
    from autotune.console import make_console
    from autotune.console_hardware import hardware_table

    make_console().print(hardware_table(hardware))


@commands.command()
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


@commands.command()
@reported
def report(files: Annotated[list[Path], typer.Argument(help="Result files.")]) -> None:
    """Writes one HTML page beside each result: opens from disk, and needs no network."""
    from autotune.report import write_report
    from autotune.result import read_result

    for result, file in [(read_result(file), file) for file in files]:  # all are read before any is written
        typer.echo(write_report(result, file))


@commands.command()
@reported
def compare(
    paths: Annotated[list[Path], typer.Argument(help="Result files, files of cross, or folders that hold them.")],
    form: Annotated[
        str, typer.Option("--format", help="table, md, csv, json or html; by --out's ending when left out.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Shows the same workload across machines."""
    from autotune.compare import compare as compare_results
    from autotune.compare import require_rows
    from autotune.console import make_console
    from autotune.console_compare import comparison_table, remarks
    from autotune.gather import gather

    chosen = parse_comparison_format(form, out, json=json)
    comparison = compare_results(gather(paths))
    if chosen == "csv" or not comparison.groups:  # in the others they are part of the text
        make_console().print(remarks(comparison))
    require_rows(comparison)
    if chosen == "table":
        make_console(stderr=not form).print(comparison_table(comparison))
    else:
        text = comparison_text(comparison, chosen, folder=out.parent if out is not None else None)
        write_text(text, out)


@commands.command()
@reported
def cross(
    file: Annotated[Path, typer.Argument(help="Another machine's result file.")],
    against: Annotated[
        Path | None, typer.Option(help="This machine's own result; looked for in results/<machine> when left out.")
    ] = None,
    model: Annotated[str, typer.Option(help="The workload, where it is not found as the file names it.")] = "",
    device: Annotated[str, typer.Option(help="Train here: cpu, cuda, rocm or mps; as in the file when left out.")] = "",
    budget: Annotated[str, typer.Option(help="Wall-clock time for everything.")] = CROSS_BUDGET,
    out: Annotated[
        Path | None, typer.Option(help="The file; results/<machine>/cross/<workload>-from-<other>.json when left out.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")] = False,
) -> None:
    """Measures another machine's config here. Exit status: 0 measured, 3 it cannot be trained with here."""
    from autotune.console import make_console
    from autotune.console_compare import cross_lines
    from autotune.cross import cross_result
    from autotune.cross_file import default_cross_path, write_cross
    from autotune.progress import make_progress
    from autotune.result import read_result
    from autotune.search.interrupts import Interrupts
    from autotune.search.stopping import Budget

    source = read_result(file)
    own = (str(against), read_result(against)) if against is not None else None
    clock = Budget(parse_duration(budget), started=STARTED)
    console = make_console()
    with Interrupts() as interrupts, make_progress(console, quiet=quiet) as progress:
        found = cross_result(
            source, model or source.workload.target, clock, progress, interrupts,
            against=own, device=parse_device(device),
        )  # fmt: skip
    place = out or default_cross_path(found)
    if json:
        typer.echo(found.model_dump_json(by_alias=True, indent=2))
    if not quiet:
        console.print(cross_lines(found, place))
    write_cross(found, place)  # last: a full disk must not swallow what was found
    raise typer.Exit(0 if found.failure is None else NothingFeasibleError.exit_status)


@commands.command()
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
        found = check_result(result, model or result.workload.target, clock, progress, interrupts)
    if json:
        typer.echo(found.model_dump_json(indent=2))
    if not quiet:
        console.print(check_lines(found))
    raise typer.Exit(STATUS[found.verdict])


def comparison_text(comparison: Comparison, form: str, folder: Path | None) -> str:
    """A comparison in one of the formats for files.

    Args:
        comparison: What was compared.
        form: md, csv, json or html.
        folder: Where the file will lie, for links from it to the results.
    """
    from autotune.compare_formats import to_csv, to_markdown
    from autotune.report.comparison import render_comparison

    texts = {
        "md": lambda: to_markdown(comparison, folder),
        "csv": lambda: to_csv(comparison),
        "json": lambda: comparison.model_dump_json(indent=2),
        "html": lambda: render_comparison(comparison),
    }
    return texts[form]()


def write_text(text: str, out: Path | None) -> None:
    """Writes a file whole or not at all; without one, to stdout.

    Raises:
        UsageError: The file cannot be written.
    """
    text = text.removesuffix("\n") + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    from autotune.files import write_whole

    try:
        write_whole(out, text)
    except OSError as error:
        raise UsageError(f"--out: {out} cannot be written: {error.strerror or error}; choose another") from error


@commands.command()
@reported
def schema() -> None:
    """Prints the JSON Schema of the result file."""
    import json

    from autotune.result import Result

    typer.echo(json.dumps(Result.model_json_schema(by_alias=True, mode="serialization"), indent=2))
