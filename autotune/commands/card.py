"""`autotune card`: a picture of a result, for a pull request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from autotune.commands.common import reported, say
from autotune.errors import UsageError


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
