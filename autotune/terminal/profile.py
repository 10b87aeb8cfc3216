"""Where steps and samples spend their time, before and after: what `show --why` prints beside the bursts."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.measuring.profiles import Operator, Profile
from autotune.results.result import Result
from autotune.units import format_seconds
from autotune.wording import as_text

TOP = 10


def profile_tables(result: Result) -> RenderableType:
    """The slowest operators and what reading a sample takes; nothing where no profile was taken."""
    before, after = result.diagnosis.before, result.diagnosis.after
    if before is None and after is None:
        return Group()
    return Group("", as_text("operators, time a sample", "bold"), _operators(before, after), *_sample(after or before))


def _operators(before: Profile | None, after: Profile | None) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", overflow="fold")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    old, new = (_by_name(profile) for profile in (before, after))
    slowest = sorted({**old, **new}, key=lambda name: -max(one[name].seconds for one in (old, new) if name in one))
    for name in slowest[:TOP]:
        table.add_row(as_text(name), *(_time(one.get(name)) for one in (old, new)))
    return table


def _by_name(profile: Profile | None) -> dict[str, Operator]:
    return {operator.name: operator for operator in profile.operators} if profile is not None else {}


def _time(operator: Operator | None) -> Text:
    """An operator that is not among a profile's slowest has no figure."""
    return as_text(format_seconds(operator.seconds)) if operator is not None else Text("–", "dim")


def _sample(profile: Profile | None) -> list[RenderableType]:
    sample = profile.sample if profile is not None else None
    if sample is None:
        return []
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_row(as_text("reading one sample"), as_text(format_seconds(sample.seconds)))
    for part in sample.parts:
        where = f" ({part.where})" if part.where else ""
        table.add_row(as_text(f"  {part.name}{where}"), as_text(format_seconds(part.seconds)))
    return ["", table]
