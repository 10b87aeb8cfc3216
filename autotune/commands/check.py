"""`autotune check` and `cross`: do a result, and the config of another machine, hold here?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.common import (
    DEVICES,
    STARTED,
    Json,
    Model,
    Network,
    Quiet,
    Seconds,
    Trust,
    Writable,
    reported,
    say,
)
from autotune.commands.run import Words
from autotune.errors import NothingFeasibleError, UsageError
from autotune.sessions.options import read, words_of
from autotune.stored import DeviceKind
from autotune.units import parse_duration


@reported
def check(
    file: Annotated[Path, typer.Argument(help="A result file.")],
    command: Words = None,
    model: Model = "",
    trust: Trust = False,
    budget: Seconds = "50s",
    writable: Writable = None,
    network: Network = False,
    json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown on stdout, for a comment.")] = False,
    quiet: Quiet = False,
) -> None:
    """Checks whether a result still holds here. Exit status: 0 holds or undecided, 1 drifted, 3 no longer fits."""
    from autotune.results.compare_formats import check_markdown
    from autotune.results.files import to_json
    from autotune.results.result import read_result
    from autotune.search.interrupts import Interrupts
    from autotune.search.stopping import Budget
    from autotune.sessions.checking import STATUS, check_result
    from autotune.sessions.trust import allowing, trained_by
    from autotune.terminal.console import check_lines, make_console
    from autotune.terminal.progress import make_progress

    if json and markdown:
        raise UsageError("expected --json or --markdown, got both; stdout holds one of them")
    result = read_result(file)
    named = trained_by(result.workload, file, model=model, command=command or (), trust=trust)
    target = allowing(named, writable or (), any_network=network)
    clock = Budget(parse_duration(budget), started=STARTED)
    console = make_console()
    with Interrupts() as interrupts, make_progress(console, quiet=quiet, seconds=clock.remaining) as progress:
        notes = None if model or command else file  # a workload that the user names is always measured
        record = check_result(result, target, clock, progress, interrupts, file=notes)
    if json:
        say(to_json(record))
    if markdown:
        say(check_markdown(record))
    if not quiet:
        console.print(check_lines(record))
    raise typer.Exit(STATUS[record.verdict])


@reported
def cross(
    file: Annotated[Path, typer.Argument(help="Another machine's result file.")],
    command: Words = None,
    against: Annotated[Path | None, typer.Option(help="This machine's result; one in results/ when left out.")] = None,
    model: Model = "",
    trust: Trust = False,
    device: Annotated[str, typer.Option(help="Default: the file's.", metavar=DEVICES)] = "",
    budget: Seconds = "60s",
    writable: Writable = None,
    network: Network = False,
    out: Annotated[
        Path | None, typer.Option(*words_of("out"), help="The cross file; in results/<machine>/cross when left out.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measures another machine's config here. Exit status: 0 it was measured, 3 it cannot train here."""
    from autotune.results.cross_file import RESULTS, default_cross_path
    from autotune.results.files import to_json, write_document
    from autotune.results.result import read_result
    from autotune.search.interrupts import Interrupts
    from autotune.search.stopping import Budget
    from autotune.sessions.crossing import cross_result
    from autotune.sessions.outputs import CROSS, require_replaceable, require_writable
    from autotune.sessions.trust import allowing, trained_by
    from autotune.terminal.comparison import cross_lines
    from autotune.terminal.console import make_console
    from autotune.terminal.progress import make_progress
    from autotune.wording import labelled

    source = read_result(file)
    named = trained_by(source.workload, file, model=model, command=command or (), trust=trust)
    target = allowing(named, writable or (), any_network=network)
    own = (str(against), read_result(against)) if against is not None else None
    kind = read(DeviceKind, "device", device)
    require_writable(out or RESULTS / "…" / "cross.json")
    if out is not None:
        require_replaceable("--out", out, CROSS)
    clock = Budget(parse_duration(budget), started=STARTED)
    console = make_console()
    with Interrupts() as interrupts, make_progress(console, quiet=quiet, seconds=clock.remaining) as progress:
        record = cross_result(source, target, clock, progress, interrupts, against=own, device=kind)
    place = out or default_cross_path(record)
    if json:
        say(to_json(record))
    if not quiet:
        console.print(cross_lines(record))
    write_document(record, place)  # after the record is shown: a full disk must not hide it
    if not quiet:
        console.print(labelled("cross file", f"{place}, which autotune compare shows", "", "bold"), soft_wrap=True)
    raise typer.Exit(0 if record.failure is None else NothingFeasibleError.exit_status)
