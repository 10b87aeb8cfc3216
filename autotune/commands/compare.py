"""`autotune compare`: the same workload across machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from autotune.commands.common import AtLeast, Samples, reported, say
from autotune.errors import UsageError
from autotune.sessions import options

Format = Literal["table", "md", "csv", "json", "html"]


@reported
def compare(
    paths: Annotated[list[Path], typer.Argument(help="Result files, cross files, or folders that hold them.")],
    form: Annotated[
        str,
        typer.Option("--format", help="Default: the ending of --out, else table.", metavar="|".join(get_args(Format))),
    ] = "",
    out: Annotated[
        Path | None, typer.Option(*options.words_of("out"), help="The file of the comparison; shown when left out.")
    ] = None,
    mine: Annotated[
        Path | None, typer.Option(help="Your result file: compared with those of the same GPU or CPU model.")
    ] = None,
    samples: Samples = "",
    at_least: AtLeast = "",
) -> None:
    """Shows the same workload across machines."""
    from autotune.files import write_whole
    from autotune.report.comparison import render_comparison
    from autotune.results.compare import compare as compare_results
    from autotune.results.compare import require_rows
    from autotune.results.compare_formats import to_csv, to_markdown
    from autotune.results.files import to_json
    from autotune.results.gather import gather
    from autotune.results.result import read_result
    from autotune.sessions.outputs import COMPARISONS, require_replaceable
    from autotune.terminal.comparison import comparison_table, remarks
    from autotune.terminal.console import make_console

    whole = options.read(options.Samples, "samples", samples)
    floor = options.read(options.Share, "at_least", at_least)
    chosen = options.read(Format, "format", form) or (out.suffix.lstrip(".") if out is not None else "table")
    if out is not None:
        if chosen not in COMPARISONS:
            raise UsageError(
                f"--out: expected a file that ends in .md, .csv, .json or .html, or one of these as --format, got {out}"
            )
        require_replaceable("--out", out, COMPARISONS[chosen])
    advising = {"--samples": samples, "--at-least": at_least, "--mine": mine}
    if chosen == "csv" and (given := next((option for option, value in advising.items() if value), None)):
        raise UsageError(
            f"{given}: CSV holds results, and no advice on them; leave {given} out, or choose another --format"
        )
    if mine is not None:
        read_result(mine)  # an unusable file of yours is an error; another one is left out
        paths = [mine, *paths]
    comparison = compare_results(gather(paths), whole, floor, str(mine))
    if chosen == "csv" or not comparison.groups:  # the other formats include them
        make_console().print(remarks(comparison))
    require_rows(comparison)
    if chosen == "table":
        make_console(stderr=False).print(comparison_table(comparison))
        return
    formats = {
        "md": lambda: to_markdown(comparison, out.parent if out is not None else None),
        "csv": lambda: to_csv(comparison),
        "json": lambda: to_json(comparison),
        "html": lambda: render_comparison(comparison),
    }
    text = formats[chosen]().removesuffix("\n")
    if out is None:
        say(text)
        return
    try:
        write_whole(out, text + "\n")
    except OSError as error:
        raise UsageError(f"--out: {out} cannot be written: {error.strerror or error}; choose another") from error
