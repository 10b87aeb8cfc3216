"""Every line that a person sees, made from data by pure functions; printing them is the command line's part.

All of it goes to stderr, since stdout belongs to ``--json``. Whatever comes from the user or from a file is
put into `Text` through `as_text`, never into markup, so that "[bold]" in a name stays "[bold]".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.check import Check
from autotune.compare import Comparison, Row, WorkloadGroup, machine_name
from autotune.config import KNOBS, format_scalar
from autotune.console_hardware import hardware_table
from autotune.errors import AutotuneError
from autotune.measurement import Interval, Speedup
from autotune.numerics import CAVEAT
from autotune.progress import lasting
from autotune.result import Result, Side
from autotune.units import format_bytes, format_rate, format_seconds
from autotune.wording import as_text, percent, ratio_text

__all__ = [
    "check_lines",
    "comparison_table",
    "error_lines",
    "hardware_table",
    "make_console",
    "result_table",
    "usage_lines",
    "usage_snippet",
]

UNKNOWN = "not measured"


def make_console() -> Console:
    """The console that everything is printed to: stderr, without rich's own colouring of numbers."""
    return lasting(Console(stderr=True, highlight=False))


def result_table(result: Result) -> RenderableType:
    """One result: before and after, what changed, what it was worth, and what limits the training now."""
    workload = result.workload
    title = as_text(f"{workload.name} ({workload.target}) on {machine_name(result)}", "bold")
    parts: list[RenderableType] = [title]
    if result.status == "partial":
        parts.append(as_text(f"PARTIAL: {_stopped_early(result)}; what follows was known by then", "bold yellow"))
    parts += ["", _before_after(result), "", _speedup_line(result)]
    parts += _won_back(result)
    parts += _numerics_lines(result)
    parts += list(_diagnosis_lines(result))
    parts += list(_search_lines(result))
    return Group(*parts)


def usage_snippet(path: Path) -> str:
    """The lines of Python that train with a result.

    Args:
        path: The result file, as the script will name it.
    """
    literal = json.dumps(path.as_posix(), ensure_ascii=False)
    return (
        "import autotune\n"
        f"tuned = autotune.load({literal})\n"
        "loader = tuned.dataloader(dataset, shuffle=True)\n"
        "model, optimizer = tuned.prepare(model, optimizer)"
    )


def usage_lines(path: Path) -> RenderableType:
    """Where a result lies, and how to train with it."""
    code = [as_text(f"    {line}", "cyan") for line in usage_snippet(path).splitlines()]
    return Group(Text.assemble("result file: ", as_text(str(path), "bold")), "train with it:", *code)


def comparison_table(comparison: Comparison) -> RenderableType:
    """The same workload across machines, a table a workload; then what to beware of."""
    parts: list[RenderableType] = []
    for group in comparison.groups:
        parts += [as_text(f"{group.name} ({group.target}), samples/s", "bold"), _group_table(group), ""]
    if not comparison.groups:
        parts.append(as_text("no results to compare"))
    parts += [_beware(warning) for warning in comparison.warnings]
    parts += [Text.assemble(("left out: ", "red"), as_text(problem)) for problem in comparison.problems]
    return Group(*parts)


def check_lines(check: Check) -> RenderableType:
    """Whether a result still holds: the ratio now beside the one in the file."""
    style = {"holds": "bold green", "drifted": "bold yellow", "no longer fits": "bold red"}[check.verdict]
    parts: list[RenderableType] = [Text.assemble((check.verdict, style), as_text(f": {check.reason}"))]
    for when, speedup in (("in the file", check.claimed), ("here and now", check.found)):
        if speedup is not None:
            ratios = f"{ratio_text(speedup.ratio)} (95 % interval {_ratios(speedup.ci95)}, {speedup.pairs} pairs)"
            parts.append(as_text(f"speed-up {when}: {ratios}"))
    parts += [_beware(difference) for difference in check.differences]
    return Group(*parts)


def error_lines(error: AutotuneError) -> RenderableType:
    """An error in one sentence, and the user's own frames when their code raised."""
    line = Text.assemble(("error: ", "bold red"), as_text(str(error)))
    trace = getattr(error, "trace", None)
    return Group(as_text(trace.rstrip(), "dim"), line) if trace else line


def _beware(text: str) -> Text:
    return Text.assemble(("beware: ", "yellow"), as_text(text))


def _change(knob: str, before: Any, after: Any) -> tuple[str, str]:
    """Both values of a changed knob, as they are typed."""
    # A parameter that the baseline does not name has the default of build() itself.
    unnamed = before is None and knob not in KNOBS
    return "build's own" if unnamed else _value(before), _value(after)


def _value(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float, str)):
        return format_scalar(value)
    return json.dumps(value)  # a file may hold any kind


# Before and after.


def _before_after(result: Result) -> Table:
    changed = result.changed_knobs
    worth = {
        row.knob: f"{ratio_text(row.ratio)} ({_ratios(row.ci95)})" for row in result.ablation if row.knob in changed
    }
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("before", overflow="fold")
    table.add_column("after", overflow="fold")
    if worth:
        table.add_column("worth")
    for label, figure in _figures(result):
        table.add_row(label, *(as_text(figure(side)) for side in (result.baseline, result.best)))
    table.add_row("")
    table.add_row(Text("changed knobs", "bold") if changed else "no knob was changed")
    for knob, (before, after) in changed.items():
        before_text, after_text = _change(knob, before, after)
        table.add_row(as_text(knob), as_text(before_text), as_text(after_text, "green"), worth.get(knob, ""))
    return table


def _figures(result: Result) -> Iterator[tuple[str, Callable[[Side], str]]]:
    """Label of each row, and how it is read from a side."""
    yield "rate", _rate
    yield "  95 % interval", _interval
    if samples := result.workload.samples:
        yield f"epoch of {samples:,}", lambda side: _epoch(side, samples)
        yield "  95 % interval", lambda side: _epoch_interval(side, samples)
    yield "effective batch", lambda side: f"{side.config.effective_batch:,}"
    # Without a device of its own, the device's memory is the host's.
    if result.constraints.device != "cpu":
        yield "device memory", lambda side: _memory(side, "device_memory_bytes")
    yield "host memory", lambda side: _memory(side, "host_memory_bytes")
    yield "waiting for data", _data_wait


def _rate(side: Side) -> str:
    if side.measurement is None:
        return UNKNOWN
    text = format_rate(side.measurement.samples_per_second)
    return text if side.measurement.steady else f"{text} (not steady)"


def _interval(side: Side) -> str:
    low, high = _ends(side)
    return f"{_bare_rate(low)} – {_bare_rate(high)}" if high else "none"


def _epoch(side: Side, samples: int) -> str:
    rate = side.measurement.samples_per_second if side.measurement else 0.0
    return format_seconds(samples / rate) if rate else UNKNOWN


def _epoch_interval(side: Side, samples: int) -> str:
    low, high = _ends(side)
    return f"{format_seconds(samples / high)} – {format_seconds(samples / low)}" if low else "none"


def _ends(side: Side) -> Interval:
    """The ends of the rate's interval; zeros where there is no spread to tell them by."""
    if side.measurement is None or len(side.measurement.blocks) == 1:
        return Interval(0.0, 0.0)
    return side.measurement.ci95_samples_per_second


def _bare_rate(rate: float) -> str:
    return format_rate(rate).removesuffix(" samples/s")


def _memory(side: Side, field: str) -> str:
    size: int | None = getattr(side.measurement, field, None)
    return UNKNOWN if size is None else format_bytes(size)


def _data_wait(side: Side) -> str:
    return f"{percent(side.measurement.data_wait_fraction)} of the time" if side.measurement else UNKNOWN


# What it was worth, and why.


def _ratios(interval: Interval) -> str:
    return f"{ratio_text(interval.low).removesuffix('×')} – {ratio_text(interval.high).removesuffix('×')}"


def _speedup_figure(speedup: Speedup) -> str:
    spread = f"95 % interval {_ratios(speedup.ci95)}, {speedup.pairs} interleaved pairs"
    return f"{ratio_text(speedup.ratio)} ({spread})"


def _speedup_line(result: Result) -> Text:
    speedup = result.speedup
    if speedup is None:
        reason = result.speedup_reason or "it was not measured in pairs"
        return Text.assemble(("no confirmed speed-up: ", "bold yellow"), as_text(reason))
    if speedup.confirmed:
        return Text.assemble(("confirmed speed-up: ", "bold green"), _speedup_figure(speedup))
    reason = result.speedup_reason or "the interval includes 1, so there may be no gain"
    return Text.assemble(("no confirmed speed-up: ", "bold yellow"), as_text(f"{_speedup_figure(speedup)}; {reason}"))


def _won_back(result: Result) -> list[Text]:
    """After how many optimizer steps compiling has paid for itself, by the confirmed speed-up."""
    before, after, speedup = result.baseline.measurement, result.best.measurement, result.speedup
    if before is None or after is None or not after.compile_seconds:
        return []
    if speedup is None or not speedup.confirmed or speedup.ratio <= 1:
        return []
    cost = after.compile_seconds
    compiled_steps = cost * before.samples_per_second / result.best.config.effective_batch

    def steps(ratio: float) -> str:
        return f"{compiled_steps * ratio / (ratio - 1):,.0f}"

    spread = f"95 % interval {steps(speedup.ci95.high)} – {steps(speedup.ci95.low)}"
    won = f"won back after about {steps(speedup.ratio)} optimizer steps ({spread})"
    return [as_text(f"compiling takes {format_seconds(cost)}, {won}")]


def _numerics_lines(result: Result) -> list[Text]:
    """Whether the config still trains the same thing."""
    verdict = result.numerics
    if verdict is None:
        return []
    caveat = f" ({CAVEAT})" if verdict.outcome == "agrees" else ""
    words = {"agrees": "agrees", "disagrees": "DISAGREES", "unchanged": "unchanged", "unchecked": "not checked"}
    lines = [as_text(f"numerics: {words[verdict.outcome]}: {verdict.reason}{caveat}")]
    return lines + [_beware(note) for note in verdict.notes]


def _diagnosis_lines(result: Result) -> Iterator[Text]:
    diagnosis = result.diagnosis
    yield as_text(f"bottleneck: {diagnosis.bottleneck or 'not found'}")
    known = [f"{part} {format_rate(rate)}" for part, rate in diagnosis.ceilings.items() if rate is not None]
    if known:
        yield as_text(f"what each part alone could reach: {', '.join(known)}")
    for advice in diagnosis.advice:
        yield as_text(f"advice: {advice}")


def _stopped_early(result: Result) -> str:
    return "tuning was interrupted" if result.stopped_by == "interrupted" else "tuning did not finish"


def _search_lines(result: Result) -> Iterator[Text]:
    search = result.search
    failed = [f"{count} {outcome}" for outcome, count in search.outcomes.items() if outcome != "ok" and count]
    line = f"{search.bursts} bursts in {format_seconds(search.seconds)}"
    line += f" ({', '.join(failed)})" if failed else ""
    line += f", {search.resumed_bursts} of them from an earlier run" if search.resumed_bursts else ""
    line += f", {percent(search.measuring_fraction)} of the time measuring; stopped by: {result.stopped_by}"
    yield as_text(line, "dim")
    if search.skipped_knobs:
        skipped = ", ".join(f"{knob} ({why})" for knob, why in search.skipped_knobs.items())
        yield as_text(f"not searched: {skipped}", "dim")
    for note in search.notes:
        yield Text.assemble(("note: ", "yellow"), as_text(note))


# Across machines.


def _group_table(group: WorkloadGroup) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("machine", ratio=4)
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    table.add_column("speed-up", justify="right")
    table.add_column("changed knobs", ratio=5, overflow="fold")
    for row in group.rows:
        table.add_row(_machine_cell(row), *_rate_cells(row), _speedup_cell(row), _changes_cell(row))
    return table


def _machine_cell(row: Row) -> Text:
    about = [f"torch {row.torch}"] if row.torch else []
    about.append(f"{row.created:%Y-%m-%d}")
    cell = Text.assemble(as_text(row.machine), "\n", as_text(", ".join(about), "dim"))
    if row.status == "partial":
        cell.append("\npartial", style="yellow")
    return cell


def _rate_cells(row: Row) -> Iterator[Text]:
    for rate, ci95 in (
        (row.before_samples_per_second, row.before_ci95),
        (row.after_samples_per_second, row.after_ci95),
    ):
        cell = Text("–" if rate is None else _bare_rate(rate), no_wrap=True)
        if ci95 is not None:
            cell.append(f"\n{_bare_rate(ci95.low)} – {_bare_rate(ci95.high)}", style="dim")
        yield cell


def _speedup_cell(row: Row) -> Text:
    if row.speedup is None:
        return Text("not\nconfirmed", style="yellow")
    style = "green" if row.speedup.confirmed else "yellow"
    return Text.assemble((ratio_text(row.speedup.ratio), style), (f"\n{_ratios(row.speedup.ci95)}", "dim"))


def _changes_cell(row: Row) -> Text:
    lines = [f"{knob} {_value(before)} → {_value(after)}" for knob, (before, after) in row.changed_knobs.items()]
    return as_text("\n".join(lines) or "none")
