"""`autotune` itself: tuning, its options, and what is written and shown in the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.commands.common import INTERRUPTED_STATUS, STARTED, reported, say
from autotune.commands.options import (
    LEAST_MEMORY,
    MOST_SEED,
    MOST_WORKERS,
    SAMPLERS,
    Options,
    one_of,
    parse_device,
    parse_effective_batch,
    parse_only,
    parse_pins,
    parse_share,
    parse_values,
    parse_whole,
    split_pairs,
)
from autotune.errors import Interrupted, UsageError
from autotune.units import parse_duration

if TYPE_CHECKING:
    from rich.console import Console

    from autotune.results.result import Result


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
    max_workers: Annotated[str, typer.Option(help="Never use more DataLoader workers.", metavar="NUMBER")] = "",
    explore: Annotated[
        list[str] | None,
        typer.Option(help="Values for build's own keyword argument; repeat for more.", metavar="NAME=A,B"),
    ] = None,
    warm_start: Annotated[
        list[Path] | None,
        typer.Option(help="Try another machine's result first; repeat for more.", metavar="FILE"),
    ] = None,
    sampler: Annotated[str, typer.Option(help="tpe, gp or random.")] = "tpe",
    seed: Annotated[str, typer.Option(help="Of the sampler and of the order of bursts.", metavar="NUMBER")] = "0",
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

        say(__version__)
        return
    if not model:
        raise UsageError("--model is required, such as --model train:build; autotune --help shows the rest")
    options = Options(
        target=model,
        budget_seconds=parse_duration(budget),
        device=parse_device(device),
        out=out,
        effective_batch=parse_effective_batch(effective_batch),
        memory_target=parse_share("--memory-target", memory_target, LEAST_MEMORY),
        utilization_target=parse_share("--utilization-target", utilization_target),
        pinned=parse_pins(pin or ()),
        only=parse_only(only),
        max_workers=parse_whole("--max-workers", max_workers, 0, MOST_WORKERS) if max_workers else None,
        explored={name: parse_values(name, values) for name, values in split_pairs("--explore", explore or ())},
        warm_start=tuple(warm_start or ()),
        sampler=one_of("--sampler", sampler, SAMPLERS),
        seed=parse_whole("--seed", seed, 0, MOST_SEED),
        storage=storage or None,
        resume=resume,
    )
    raise typer.Exit(run_tuning(options, as_json=json, quiet=quiet))


def run_tuning(options: Options, *, as_json: bool, quiet: bool) -> int:
    """Tunes, writes the result, shows it; returns the exit status."""
    from autotune.commands.tuning import Tuning
    from autotune.measuring import objective_named
    from autotune.results.files import keep_document, to_json
    from autotune.search.interrupts import Interrupts
    from autotune.search.stopping import Budget
    from autotune.terminal.console import make_console, result_table, usage_lines
    from autotune.terminal.progress import make_progress

    console = make_console()
    budget = Budget(options.budget_seconds, started=STARTED)
    with Interrupts() as interrupts:
        try:
            objective = objective_named(options.objective)
            with make_progress(console, quiet=quiet, objective=objective) as progress:
                result, path = Tuning(options, progress, budget, interrupts).run()
        except Interrupted:
            console.print("interrupted before the first burst had ended; nothing was written")
            return INTERRUPTED_STATUS
        with interrupts.held():
            place, failure = keep_document(result, path)
        if failure is not None or not quiet:
            console.print(result_table(result))
        # Where the result had to be put elsewhere, its page is not wanted too.
        page = make_report(result, place, console) if place is not None and failure is None else None
        if place is not None and not quiet:
            console.print(usage_lines(place, page))
        if as_json:
            say(to_json(result))
        if failure is not None:
            raise failure
    return INTERRUPTED_STATUS if result.status == "partial" else 0


def make_report(result: Result, place: Path, console: Console) -> Path | None:
    """Writes the page beside the result; what goes wrong with it is told, and costs nothing else."""
    try:
        from autotune.report import write_report

        return write_report(result, place)
    except Exception as error:  # noqa: BLE001 - the result is written, and a picture of it is no reason to fail
        console.print(f"the report could not be made: {error}; 'autotune report {place}' tries again", markup=False)
        return None
