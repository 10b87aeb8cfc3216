"""Commands that read results and logs: `show`, `report` (a page), `card` (a picture), `watch`; and `schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from autotune.commands.common import Json, reported, say
from autotune.errors import UsageError


@reported
def show(
    file: Annotated[Path, typer.Argument(help="A result file.")],
    why: Annotated[
        bool, typer.Option("--why", help="Show every burst with its reason, and why each other knob was not searched.")
    ] = False,
    json: Json = False,
) -> None:
    """Shows one result."""
    from autotune.results.files import to_json
    from autotune.results.result import read_result
    from autotune.terminal.console import (
        make_console,
        profile_tables,
        result_table,
        training_lines,
        trials_table,
        usage_lines,
    )

    result = read_result(file)
    if json:
        say(to_json(result))
        return
    console = make_console(stderr=False)
    console.print(trials_table(result) if why else result_table(result))
    console.print(training_lines(result, file))
    if why:
        console.print(profile_tables(result))
    else:
        console.print(usage_lines(result, file), crop=False)


@reported
def report(files: Annotated[list[Path], typer.Argument(help="Result files.")]) -> None:
    """Writes one HTML page beside each result, which opens from disk without a network."""
    from autotune.report import write_report
    from autotune.results.result import read_result
    from autotune.sessions.outputs import PAGE, require_replaceable

    results = [(read_result(file), file) for file in files]  # reads all before it writes any
    files_of: dict[Path, Path] = {}
    for file in files:
        page = file.with_suffix(".html")
        if files_of.setdefault(page, file) != file:
            raise UsageError(f"expected one file for {page}, got {files_of[page]} and {file}; rename one of them")
        require_replaceable("the report", page, PAGE)
    for result, file in results:
        say(str(write_report(result, file)))


@reported
def card(
    file: Annotated[Path, typer.Argument(help="A result file.")],
    svg: Annotated[Path | None, typer.Option(help="Write the picture to this file, as SVG.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the picture to this file, as PNG.")] = None,
) -> None:
    """Draws a result as a card for a pull request: the speed-up, both rates, the changed knobs, and the machine.

    Without --svg and --png, both pictures are written beside the result.
    """
    from autotune.files import write_whole
    from autotune.report.card import card as drawn
    from autotune.results.result import read_result
    from autotune.sessions.outputs import CARDS, require_replaceable

    result = read_result(file)
    places: dict[Literal["svg", "png"], Path | None] = {"svg": svg, "png": png}
    if svg is None and png is None:
        places = {kind: file.with_suffix(f".{kind}") for kind in places}
    for kind, place in places.items():
        if place is None:
            continue
        require_replaceable(f"--{kind}", place, CARDS[kind])
        try:
            write_whole(place, drawn(result, kind))
        except OSError as error:
            raise UsageError(f"the card could not be written to {place}: {error.strerror or error}") from error
        say(str(place))


@reported
def schema() -> None:
    """Prints the JSON Schema of the result file."""
    import json

    from autotune.results.result import Result

    say(json.dumps(Result.model_json_schema(by_alias=True, mode="serialization"), indent=2))


@reported
def watch(file: Annotated[Path, typer.Argument(help="The log of a training, or its result file.")]) -> None:
    """Shows a training that autotune train has started: its rate, the setting in play, and the gain so far."""
    from autotune.errors import ResultFileError
    from autotune.results.live import log_path
    from autotune.terminal.console import make_console
    from autotune.terminal.live import follow

    log = log_path(file)
    if file.stem.endswith("-partial") and not log.exists():  # the log is that of the file which the command named
        log = log_path(file.with_stem(file.stem.removesuffix("-partial")))
    try:
        follow(log, make_console(stderr=False))
    except OSError as error:
        raise ResultFileError(
            f"expected the log of a training at {log}, got none that can be read ({error.strerror}); name the file "
            "that autotune train has named"
        ) from None
    except KeyboardInterrupt:
        pass
