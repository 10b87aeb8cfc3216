"""`autotune compare`: the same workload across machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.commands import shared_options
from autotune.commands.common import collection_paused, reported, say
from autotune.commands.options import parse_comparison_format, parse_floor, parse_samples
from autotune.errors import UsageError


@reported
@collection_paused()
def compare(
    paths: Annotated[list[Path], typer.Argument(help="Result files, cross files, or folders that hold them.")],
    form: Annotated[str, typer.Option("--format", help="table, md, csv, json or html; else by --out's ending.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of showing it.")] = None,
    samples: Annotated[
        str, typer.Option(help="Of a whole training, epochs included: what it takes and costs on each.")
    ] = "",
    at_least: shared_options.MachinesAtLeast = "",
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Shows the same workload across machines."""
    from autotune.commands.outputs import COMPARISONS, require_replaceable
    from autotune.files import write_whole
    from autotune.report.comparison import render_comparison
    from autotune.results.compare import compare as compare_results
    from autotune.results.compare import require_rows
    from autotune.results.compare_formats import to_csv, to_markdown
    from autotune.results.files import to_json
    from autotune.results.gather import gather
    from autotune.terminal.comparison import comparison_table, remarks
    from autotune.terminal.console import make_console

    chosen = parse_comparison_format(form, out, json=json)
    if out is not None:
        require_replaceable("--out", out, COMPARISONS[chosen])
    comparison = compare_results(gather(paths), parse_samples(samples), parse_floor(at_least))
    if chosen == "csv" or not comparison.groups:  # in the others they are part of the text
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
