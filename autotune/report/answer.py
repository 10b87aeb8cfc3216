"""The answer: the first screen, the rates, the changes and their worth, the numerics check, and how to keep it."""

from __future__ import annotations

import shlex
from pathlib import Path

from autotune.knobs import KNOB_NAMES
from autotune.report.blocks import Block, Code, Folded, Headline, Pair, Picture, Section, Table, Text, Tone
from autotune.report.charts import TOGETHER, both_sides, rates_picture, waterfall_picture, waterfall_steps
from autotune.report.pairs import ahead_text, rounds_of
from autotune.results import summary
from autotune.results.result import Result
from autotune.results.trainings import read_trainings
from autotune.wording import ratio_text

KNOBS = ("knob", "before", "after")
RIGHT = frozenset({1, 2})
UNNAMED = Path("result.json")
"""How a page names a result that has no file."""
TONES: dict[str, Tone] = {"agrees": "good", "disagrees": "warning"}


def headline(result: Result) -> Headline:
    """The confirmed speed-up with its interval, or the reason why there is none."""
    verdict = summary.verdict(result)
    before, after = result.score_of(result.baseline), result.score_of(result.best)
    scores = ""
    if before is not None and after is not None:
        scores = result.objective.format(after)
        if result.changed_knobs:
            scores = f"{result.objective.bare(before)} → {scores}"
    if verdict.confirmed and result.speedup is not None:
        reason = f"{summary.spread_text(result.speedup)}{summary.beside_others(result)}"
        return Headline(ratio_text(result.speedup.ratio), verdict.words, reason, scores, good=True)
    return Headline("", verdict.words, verdict.reason, scores, good=False)


def answers(result: Result, source: Path | None) -> list[Section]:
    """The first screen below the headline: is it safe, what to do next, and what is the limit now."""
    return [
        Section("safe", "Is it safe?", "Safe", _safety(result, source)),
        Section("next", "What to do next", "Next", _next(result, source)),
        Section("limit", "What is the limit now?", "Limit", _limit(result)),
    ]


def _safety(result: Result, source: Path | None) -> list[Block]:
    """Numerics, the proof, its repeatability, trainings since, and what grows while it trains."""
    blocks: list[Block] = []
    if (words := summary.numerics_text(result, caveat="")) is not None and result.numerics is not None:
        blocks.append(Text(f"{words}.", TONES.get(result.numerics.outcome, "plain"), "numerics"))
    if rounds := rounds_of(result):
        ratios = [played.after / played.before for played in rounds]
        blocks.append(Text(f"{ahead_text(rounds)}, on the same samples.", lead="proof"))
        if len(rounds) > 1:
            spread = f"{ratio_text(min(ratios))} to {ratio_text(max(ratios))}"
            blocks.append(Text(f"{len(rounds)} rounds of fresh processes gave {spread}.", lead="repeatability"))
    elif result.speedup is None:
        blocks.append(Text("no gain is claimed.", lead="proof"))
    blocks += [Text(sentence(text)) for text in summary.proof_texts(result)]
    trainings = read_trainings(result, source) if source is not None else None
    blocks += [Text(f"{text}.", lead="since then") for text in (trainings.sentences() if trainings is not None else ())]
    return [*blocks, *(Text(f"{text}.", "warning", "watch out") for text in summary.growth_texts(result))]


def _next(result: Result, source: Path | None) -> list[Block]:
    """The command, or the lines, that train with the result; where no gain is proven, how to try more."""
    code, sentences = summary.what_next(result, source or UNNAMED)
    label = "Command that trains the script with this result"
    if result.workload.script is None:
        label = "Python that trains with this result"
    blocks: list[Block] = [Text("Train with this result:"), Code(code, label)] if code else []
    return [*blocks, *([Text(" ".join(map(sentence, sentences)))] if sentences else [])]


def _limit(result: Result) -> list[Block]:
    """The bottleneck, and the first advice."""
    advice = result.diagnosis.advice[:1] or ("nothing that was measured calls for a change in your own code",)
    return [Text(f"{summary.bottleneck_text(result)}.", lead="bottleneck"), Text(sentence(advice[0]))]


def rates(result: Result) -> list[Block]:
    """Before and after, and the changed knobs."""
    rows = tuple(
        (f"{label} of the {part_of.partition(' ')[0]}" if part_of else label, before, after)
        for label, before, after, part_of in summary.figures(result)
    )
    table = Table("Measured before and after", ("", "before", "after"), rows, numeric=RIGHT)
    svg = rates_picture(both_sides(result), "rates")
    blocks: list[Block] = []
    if svg is None:
        blocks += [Text("Neither side was measured, so there is no rate to show.", "note"), table]
    else:
        finding = next(f"Rate before: {before}; after: {after}." for label, before, after in rows if label == "rate")
        blocks.append(Pair(Picture(svg, finding, f"bar: samples/s; line across its end: {summary.INTERVAL}"), table))
    if changed := summary.changes(result):
        blocks.append(Table("Changed knobs", KNOBS, tuple(change[:3] for change in changed)))
    else:
        blocks.append(Text("No knob was changed."))
    blocks += [Text(sentence(remark)) for remark in summary.remarks(result)]
    configs = [side.config.model_dump() for side in (result.baseline, result.best)]
    whole = tuple((knob, *(summary.knob_text(knob, config[knob]) for config in configs)) for knob in KNOB_NAMES)
    return [*blocks, Folded("Every knob", (Table("All knobs, changed or not", KNOBS, whole),))]


def ablation(result: Result) -> list[Block]:
    """The worth of each change, as a waterfall."""
    svg = waterfall_picture(result)
    if svg is None:
        return [Text(_no_ablation(result), "note")]
    rows = tuple(
        (row.knob, summary.gain_text(row.ratio, row.ci95), summary.ratios(row.ci95)) for row in result.ablation
    )
    noun = "speed" if result.objective.is_rate else result.objective.name.replace("_", " ")
    worths = ", ".join(f"{knob} {ratio} ({sure})" for knob, ratio, sure in rows)
    picture = Picture(
        svg,
        f"What each change was worth: {worths}.",
        f"bar: from the {noun} without the change to that with it; line across its end: {summary.INTERVAL}; "
        "1×: before; grey: may be no change",
    )
    blocks: list[Block] = [
        Text(
            f"The search's estimates, from all measured pairs: the answer's {noun} over its {noun} with one knob as "
            "before. If the interval includes 1, the change may have no effect. The factors multiply, so equal lengths "
            "in the picture are equal factors."
        ),
        Pair(picture, Table("Each change", ("knob", "worth", summary.INTERVAL), rows, numeric=RIGHT)),
    ]
    for step in waterfall_steps(result):
        if step.label == TOGETHER:
            words = (
                f"Alone, the changes multiply to {ratio_text(step.start)}. The remaining {ratio_text(step.ratio)} is "
                "their joint effect, the effect of knobs without an estimate, and the error of the estimates."
            )
            blocks.append(Text(words))
    return blocks


def numerics(result: Result) -> list[Block]:
    """The comparison with eager fp32."""
    record, words = result.numerics, summary.numerics_text(result)
    if record is None or words is None:
        return [Text("This file does not say.", "note")]
    blocks: list[Block] = [Text(f"{words}.", TONES.get(record.outcome, "plain"), "numerics")]
    blocks += [Text(note, "warning", "warning") for note in record.notes]
    if record.gates:
        rows = []
        for gate in record.gates:
            value = "not finite" if gate.value is None else f"{gate.value:.3g}"
            rows.append((gate.name, value, f"{gate.limit:.3g}", "passed" if gate.passed else "FAILED"))
        blocks.append(Table("Compared with eager fp32", ("", "value", "limit", ""), tuple(rows), numeric=RIGHT))
    return blocks


def usage(result: Result, source: Path | None) -> list[Block]:
    """How to write a result into the script, and how to check it."""
    path = shlex.quote(str(source or UNNAMED))
    blocks: list[Block] = []
    if result.workload.script is not None:
        blocks = [
            Text("To write the settings into the script; --reverse takes them out again:"),
            Code(f"autotune patch {path}", "Command that writes this result into the script"),
        ]
    return [
        *blocks,
        Text("To check in under a minute whether it still holds, here or on another machine:"),
        Code(f"autotune check {path}", "Command that checks this result"),
        Text("Training with it warns you if the machine, torch or the model has changed since.", "note"),
    ]


def _no_ablation(result: Result) -> str:
    if not result.changed_knobs:
        return "No knob was changed, so there is nothing to revert."
    if result.ablation:
        return "The worths in this file are outside of the range that can be drawn."
    if summary.is_live(result):
        return sentence(summary.LIVE)
    return "The search tried too little to estimate what each change is worth."


def sentence(text: str) -> str:
    """A remark with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."
