"""`autotune card`: a picture of a result, for a pull request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.common import reported, say
from autotune.errors import UsageError


@reported
def card(
    file: Annotated[Path, typer.Argument(help="A result file.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A .svg or .png; both beside the result when left out.")
    ] = None,
) -> None:
    """Draws a result as a card for a pull request: the speed-up, both rates, the changed knobs, and the machine."""
    from autotune.commands.outputs import CARDS, require_replaceable
    from autotune.files import write_whole
    from autotune.report.card import card as drawn
    from autotune.results.result import read_result

    result = read_result(file)
    places = [out] if out is not None else [file.with_suffix(".svg"), file.with_suffix(".png")]
    for place in places:
        kind = place.suffix.lower()
        if kind not in {".svg", ".png"}:
            raise UsageError(f"--out: expected a file that ends in .svg or .png, got {place}")
        require_replaceable("--out", place, CARDS[kind])
        try:
            write_whole(place, drawn(result, "svg" if kind == ".svg" else "png"))
        except OSError as error:
            raise UsageError(f"the card could not be written to {place}: {error.strerror or error}") from error
        say(str(place))
