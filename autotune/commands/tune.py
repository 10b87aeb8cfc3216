"""`autotune` itself: tuning, its options, and what is written and shown in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.commands import options
from autotune.commands.common import STARTED, Json, Quiet, reported, say
from autotune.errors import Interrupted, UsageError
from autotune.search.interrupts import INTERRUPTED_STATUS
from autotune.units import parse_duration


@reported
def tune(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="What to tune: module:build or file.py:build.", metavar="TARGET")] = "",
    budget: Annotated[str, typer.Option(help="Wall-clock time for everything: 90s, 10m, 1h30m.")] = "10m",
    device: Annotated[str, typer.Option(help="cpu, cuda, rocm or mps; the first accelerator when left out.")] = "",
    out: Annotated[Path | None, typer.Option(help="The result file; in results/<machine> when left out.")] = None,
    effective_batch: Annotated[
        str, typer.Option(help="Batch size × accumulation: a number, or 'free'; the baseline's when left out.")
    ] = "",
    memory_target: Annotated[str, typer.Option(help="The share of memory that may be used.")] = "0.9",
    utilization_target: Annotated[
        str, typer.Option(help="How busy the GPU and how near its ceiling training must be for the search to stop.")
    ] = "0.95",
    pin: Annotated[list[str] | None, typer.Option(help="Hold a knob; may be repeated.", metavar="KNOB=VALUE")] = None,
    only: Annotated[str, typer.Option(help="Search only these knobs.", metavar="KNOB,KNOB")] = "",
    max_workers: Annotated[str, typer.Option(help="Never use more DataLoader workers.", metavar="NUMBER")] = "",
    explore: Annotated[
        list[str] | None, typer.Option(help="Values for an argument of build(); may be repeated.", metavar="NAME=A,B")
    ] = None,
    warm_start: Annotated[
        list[Path] | None, typer.Option(help="Try another machine's result first; may be repeated.", metavar="FILE")
    ] = None,
    sampler: Annotated[str, typer.Option(help="Optuna's sampler: tpe, gp or random.")] = "tpe",
    seed: Annotated[str, typer.Option(help="Seeds the sampler and the order of bursts.", metavar="NUMBER")] = "0",
    storage: Annotated[str, typer.Option(help="Database URL for the trials; a file by the result when left out.")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run, repeating no burst.")] = False,
    fit: Annotated[
        bool, typer.Option("--fit", help="Tell what each change gives to a baseline that runs out of memory.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
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
    asked = options.Options(
        target=model,
        budget_seconds=parse_duration(budget),
        device=options.parse_device(device),
        out=out,
        effective_batch=options.parse_effective_batch(effective_batch),
        memory_target=options.parse_share("--memory-target", memory_target, options.LEAST_MEMORY),
        utilization_target=options.parse_share("--utilization-target", utilization_target),
        pinned=options.parse_pins(pin or ()),
        only=options.parse_only(only),
        max_workers=options.parse_whole("--max-workers", max_workers, 0, options.MOST_WORKERS) if max_workers else None,
        explored=options.parse_explored(explore or ()),
        warm_start=tuple(warm_start or ()),
        sampler=options.one_of("--sampler", sampler, options.SAMPLERS),
        seed=options.parse_whole("--seed", seed, 0, options.MOST_SEED),
        storage=storage or None,
        resume=resume,
        fit=fit,
    )
    raise typer.Exit(_run(asked, as_json=json, quiet=quiet))


def _run(asked: options.Options, *, as_json: bool, quiet: bool) -> int:
    """Tunes, writes the result, shows it; returns the exit status."""
    from autotune.commands.tuning import Tuning
    from autotune.measuring import objective_named
    from autotune.results.files import keep_document, to_json
    from autotune.search.interrupts import Interrupts
    from autotune.search.stopping import Budget
    from autotune.terminal.console import make_console, result_table, usage_lines
    from autotune.terminal.progress import make_progress

    console = make_console()
    budget = Budget(asked.budget_seconds, started=STARTED)
    with Interrupts() as interrupts:
        try:
            with make_progress(
                console, quiet=quiet, objective=objective_named(asked.objective), seconds=budget.remaining
            ) as progress:
                result, path = Tuning(asked, progress, budget, interrupts).run()
        except Interrupted:
            console.print("interrupted before the first burst ended; nothing was written")
            return INTERRUPTED_STATUS
        with interrupts.held():
            place, failure = keep_document(result, path)
        if failure is not None or not quiet:
            console.print(result_table(result))
        page = None  # nor is it wanted where the result had to be written elsewhere
        if place is not None and failure is None:
            try:
                from autotune.report import write_report

                page = write_report(result, place)
            except Exception as error:  # noqa: BLE001 - the result is written, and its picture is no reason to fail
                told = f"the report could not be made: {error}; 'autotune report {place}' tries again"
                console.print(told, markup=False)
        if place is not None and not quiet:
            console.print(usage_lines(place, page))
        if as_json:
            say(to_json(result))
        if failure is not None:
            raise failure
    return INTERRUPTED_STATUS if result.status == "partial" else 0
