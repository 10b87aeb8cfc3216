"""`autotune` itself: tunes a model, then writes and shows the result."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from autotune.commands.common import STARTED, DryRun, Json, Quiet, Target, reported, say
from autotune.errors import INTERRUPTED_STATUS, AutotuneError, Interrupted, UsageError
from autotune.sessions.options import FOR_SCRIPTS, Options, offering


@reported
@offering(hidden=FOR_SCRIPTS)
def tune(
    context: typer.Context,
    model: Target = "",
    *,
    dry_run: DryRun = False,
    json: Json = False,
    quiet: Quiet = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    **options: Any,
) -> None:
    """Tunes a model; without a sub-command, --model is required."""
    if context.invoked_subcommand is not None:
        _refuse_options(context, context.invoked_subcommand)
        return
    if version:
        from autotune import __version__

        say(__version__)
        return
    if not model:
        raise UsageError("--model is required, such as --model train:build; autotune --help shows the rest")
    parsed = Options.parse(options, target=model)
    if dry_run:
        look_and_tell(parsed, as_json=json, quiet=quiet)
    else:
        raise typer.Exit(tune_and_tell(parsed, as_json=json, quiet=quiet))


def tune_and_tell(options: Options, *, as_json: bool, quiet: bool, patching: bool = False) -> int:
    """Tunes, writes and shows the result (only errors if `quiet`), and returns the exit status.

    `patching` also writes the result's settings into the script.
    """
    from autotune.commands.patch import after_run
    from autotune.results.files import to_json
    from autotune.search.interrupts import Interrupts
    from autotune.search.stopping import Budget
    from autotune.sessions.tuning import tune_and_save
    from autotune.terminal.console import make_console, result_table, usage_lines
    from autotune.terminal.progress import make_progress

    console = make_console()
    budget = Budget(options.budget_seconds, started=STARTED)
    with Interrupts() as interrupts:
        progress = make_progress(console, quiet=quiet, objective=options.goal, seconds=budget.remaining)
        try:
            saved = tune_and_save(options, progress, budget, interrupts)
        except Interrupted as interrupted:
            console.print(str(interrupted))
            return INTERRUPTED_STATUS
        failure: AutotuneError | None = saved.failure
        if failure is not None or not quiet:
            console.print(result_table(saved.result))
        with interrupts.held():
            page, why_none = saved.write_page()
        if why_none is not None:
            console.print(why_none, markup=False, soft_wrap=True)
        if saved.path is not None and not quiet:
            console.print(usage_lines(saved.result, saved.path, page), crop=False)
        if saved.path is not None and failure is None:
            patched, failure = after_run(saved.result, saved.path, patching=patching)
            if patched is not None and not quiet:
                console.print(patched, soft_wrap=True)
        if as_json:
            say(to_json(saved.result))
        if failure is not None:
            raise failure
    return INTERRUPTED_STATUS if saved.result.status == "partial" else 0


def look_and_tell(options: Options, *, as_json: bool, quiet: bool) -> None:
    """Shows a dry run: what was seen in the workload, and what the search would try."""
    from json import dumps

    from autotune.search.interrupts import Interrupts
    from autotune.search.stopping import Budget
    from autotune.secrets import masked_data
    from autotune.sessions.tuning import Tuning
    from autotune.terminal.console import make_console
    from autotune.terminal.look import look_data, look_lines
    from autotune.terminal.progress import make_progress

    console = make_console()
    budget = Budget(options.budget_seconds, started=STARTED)
    with Interrupts() as interrupts, make_progress(console, quiet=quiet, seconds=budget.remaining) as progress:
        look = Tuning(options, progress, budget, interrupts).look()
    if as_json:
        say(dumps(masked_data(look_data(*look)), indent=2, default=str))
    else:
        console.print(look_lines(*look))


def _refuse_options(context: typer.Context, command: str) -> None:
    """Refuses an option before a sub-command, which would be ignored silently."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[0]
            raise UsageError(
                f"{option} stands before {command!r}, where it means nothing; write autotune {command} {option} ..."
            )
