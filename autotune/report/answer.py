"""The answer's sections: how much faster, by which changes, whether it trains the same thing, and how to use it."""

from __future__ import annotations

import shlex
from pathlib import Path

from autotune.knobs import KNOB_NAMES
from autotune.report.blocks import Block, Code, Folded, Headline, Pair, Picture, Section, Table, Text, Tone
from autotune.report.charts import (
    ALL,
    TOGETHER,
    both_sides,
    rates_picture,
    waterfall_picture,
    waterfall_steps,
)
from autotune.results.result import ABLATION_MIN_BUDGET_SECONDS, Result
from autotune.results.summary import (
    INTERVAL,
    break_even,
    changes,
    figures,
    knob_text,
    numerics_text,
    ratios,
    spread_text,
    usage_snippet,
    verdict,
)
from autotune.wording import ratio_text

SIDES = ("", "before", "after")
RIGHT = frozenset({1, 2})
TONES: dict[str, Tone] = {"agrees": "good", "disagrees": "warning"}


def headline(result: Result) -> Headline:
    """The confirmed speed-up with its interval, or that there is none and why."""
    found = verdict(result)
    before, after = result.score_of(result.baseline), result.score_of(result.best)
    scores = ""
    if before is not None and after is not None:
        scores = result.objective.format(after)
        if result.changed_knobs:
            scores = f"{result.objective.bare(before)} → {scores}"
    if found.confirmed and result.speedup is not None:
        figure, reason = ratio_text(result.speedup.ratio), spread_text(result.speedup)
        return Headline(figure, found.words, reason, scores, good=True)
    return Headline("", found.words, found.reason, scores, good=False)


def rates_section(result: Result) -> Section:
    """Before and after, and what was changed."""
    rows = tuple(
        (f"{label} of the {of.partition(' ')[0]}" if of else label, before, after)
        for label, before, after, of in figures(result)
    )
    table = Table("What both were measured to do", SIDES, rows, numeric=RIGHT)
    svg = rates_picture(both_sides(result), "rates")
    blocks: list[Block] = []
    if svg is None:
        blocks += [Text("Neither side was measured, so there is no rate to show.", "note"), table]
    else:
        finding = f"Rate before: {rows[0][1]}; after: {rows[0][2]}."
        blocks.append(Pair(Picture(svg, finding, f"bar: samples/s; line across its end: {INTERVAL}"), table))
    knobs = ("knob", "before", "after")
    if changed := changes(result):
        blocks.append(Table("Changed knobs", knobs, tuple(change[:3] for change in changed)))
    else:
        blocks.append(Text("No knob was changed: what you train with today is the answer."))
    if (won := break_even(result)) is not None:
        blocks.append(Text(f"{won[0].upper()}{won[1:]}."))
    before, after = result.baseline.config.model_dump(), result.best.config.model_dump()
    whole = tuple((knob, knob_text(knob, before[knob]), knob_text(knob, after[knob])) for knob in KNOB_NAMES)
    blocks.append(Folded("Every knob", (Table("All knobs, changed or not", knobs, whole),)))
    return Section("rates", "Before and after", "Before and after", tuple(blocks))


def ablation_section(result: Result) -> Section:
    """What each change was worth, as a waterfall."""
    svg = waterfall_picture(result)
    if svg is None:
        return Section("ablation", "What each change was worth", "Worth", (Text(_no_ablation(result), "note"),))
    steps = waterfall_steps(result)
    worths = ", ".join(f"{step.label} {ratio_text(step.ratio)}" for step in steps if step.label not in {ALL, TOGETHER})
    rows = tuple((row.knob, ratio_text(row.ratio), ratios(row.ci95)) for row in result.ablation)
    picture = Picture(
        svg,
        f"Each change reverted alone was worth: {worths}.",
        f"bar: from the speed without the change to that with it; line across its end: {INTERVAL}; 1×: before",
    )
    blocks: list[Block] = [
        Text(
            "Each changed knob was reverted alone and run beside the answer, in turns. Worths multiply, so equal "
            "lengths are equal factors."
        ),
        Pair(picture, Table("Each change reverted alone", ("knob", "worth", INTERVAL), rows, numeric=RIGHT)),
    ]
    together = next((step for step in steps if step.label == TOGETHER), None)
    if together is not None:
        rest = ratio_text(together.ratio)
        blocks.append(
            Text(
                f"Alone, the changes multiply to {ratio_text(together.start)}; {rest} remains for what they do only "
                "together, and for knobs that were not reverted."
            )
        )
    return Section("ablation", "What each change was worth", "Worth", tuple(blocks))


def numerics_section(result: Result) -> Section:
    """The check beside eager fp32."""
    title = "Does it still train the same thing?"
    found, words = result.numerics, numerics_text(result)
    if found is None or words is None:
        return Section("numerics", title, "Numerics", (Text("This file does not say.", "note"),))
    blocks: list[Block] = [Text(f"{words}.", TONES.get(found.outcome, "plain"), "numerics")]
    blocks += [Text(note, "warning", "warning") for note in found.notes]
    if found.gates:
        rows = tuple(
            (
                gate.name,
                "not finite" if gate.value is None else f"{gate.value:.3g}",
                f"{gate.limit:.3g}",
                "within" if gate.passed else "BEYOND",
            )
            for gate in found.gates
        )
        blocks.append(Table("Beside eager fp32", ("", "came", "limit", ""), rows, numeric=RIGHT))
    return Section("numerics", title, "Numerics", tuple(blocks))


def usage_section(source: Path | None) -> Section:
    """The lines that train with a result, and the command that checks it."""
    path = source if source is not None else Path("result.json")
    blocks = (
        Text(
            "These lines train as the answer was measured; a warning says what has changed since, of the machine, "
            "of torch or of the model."
        ),
        Code(usage_snippet(path), "Python that trains with this result"),
        Text("Whether it still holds, here or on another machine, takes under a minute to find out:"),
        Code(f"autotune check {shlex.quote(str(path))}", "Command that checks this result"),
    )
    return Section("usage", "How to use it", "Use", blocks)


def _no_ablation(result: Result) -> str:
    if not result.changed_knobs:
        return "No knob was changed, so there is nothing to reverted."
    if result.ablation:
        return "What the file tells of it makes no sense, so nothing is drawn."
    if result.constraints.budget_seconds < ABLATION_MIN_BUDGET_SECONDS:
        return "No changed knob was reverted alone: budgets under 2 minutes keep no time for that."
    return "No changed knob was reverted alone: no time was left after the confirmation, or it failed."
