"""A result in rows and sentences of plain text, the same for the terminal and the report."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from autotune.knobs import KNOB_NAMES, format_scalar
from autotune.measuring import CAVEAT, FOREIGN_CPU_LIMIT, Growth, Headroom, Interval, Outcome, Pair, Speedup
from autotune.results.result import Result, Side, TrialRecord, WarmStartRecord
from autotune.secrets import is_masked
from autotune.units import format_bytes, format_flops, format_rate, format_seconds, rounded
from autotune.wording import percent, ratio_text

UNKNOWN = "not measured"
LIVE = "a training that is tuned while it runs does not measure this"
INTERVAL = "95 % interval"
VAGUE = 4.0
"""An interval whose ends are this many times apart shows nothing. Not tuned."""


class Figure(NamedTuple):
    """One figure of both sides; `parent` is the row that an interval belongs to."""

    label: str
    before: str
    after: str
    parent: str = ""


class Change(NamedTuple):
    """A changed knob, and what the change was worth where that is known."""

    knob: str
    before: str
    after: str
    worth: str


class _Peak(NamedTuple):
    """Wording of a share of a peak: the sentence, the peak's unit, and the meaning of a low or high share."""

    name: str
    unit: Callable[[float], str]
    low: str
    high: str


LOW_SHARE, HIGH_SHARE = 0.3, 0.9
"""Shares of a peak that count as low and as high. Not tuned; trainings of large models reach a third to a half."""
_PEAKS = {
    "compute": _Peak(
        "computing reaches {} of the {} of {} matrix products",
        format_flops,
        "usual where operators are small, memory is the limit, or training waits",
        "as fast as it can be",
    ),
    "memory": _Peak(
        "weights, gradients and optimizer need {} of the {} that memory copies",
        lambda peak: f"{format_bytes(peak)}/s",
        "they are not the limit; activations are not counted",
        "memory is the limit, unless caches hold them: fewer, larger steps or smaller types would help",
    ),
    "loading": _Peak(
        "training takes {} of the {} that the loader alone reaches",
        format_rate,
        "loading is not the limit",
        "loading is the limit",
    ),
}
_GROWING = {
    "host memory": "host memory grows",
    "shared memory": "shared memory (/dev/shm) fills up",
    "open files": "the number of open files grows",
    "GPU memory": "the GPU's memory fills up",
}


class Verdict(NamedTuple):
    """Whether training became faster, and by how much or why not."""

    confirmed: bool
    words: str
    reason: str


def title(result: Result) -> str:
    """The title: what was tuned, and where."""
    return f"{result.workload.name} ({result.workload.target}) on {result.machine}"


def unfinished(result: Result) -> str | None:
    """The reason why a result is partial; None for a complete one."""
    if result.status != "partial":
        return None
    early = "the search ended before all settings were decided" if is_live(result) else "tuning was interrupted"
    reasons = {"interrupted": early, "end of training": "the training ended before the search did"}
    return f"{reasons.get(result.stopped_by, 'tuning did not finish')}; this is what was known by then"


def how_to_train(result: Result, path: Path) -> str:
    """How to train with a result: a command that launches the script, else lines for your own script."""
    script = result.workload.script
    if script is not None:
        return f"autotune launch {shlex.quote(path.as_posix())} -- {shlex.join(script.command)}"
    lines = [
        "import autotune",
        f"tuned = autotune.load({json.dumps(path.as_posix(), ensure_ascii=False)})",
        "loader = tuned.dataloader(dataset, shuffle=True)  # with your own sampler and collate_fn, if you have them",
        "model, optimizer = tuned.prepare(model, optimizer)",
    ]
    if result.best.config.compiles_loss:
        lines.append("loss = tuned.compiled_loss(loss)")
    return "\n".join(lines)


def what_next(result: Result, path: Path) -> tuple[str, list[str]]:
    """The code that trains with the answer, empty where no gain is proven; and what else to do, in sentences."""
    alone = result.speedup is None and result.baseline.measurement is None and result.best.measurement is not None
    if result.changed_knobs and (alone or verdict(result).confirmed):
        script = result.workload.script
        hides = script is not None and is_masked(script.command)
        return how_to_train(result, path), ["replace *** with your secret"] * hides
    longer = [how_to_search_longer(result)] * (result.stopped_by in {"budget", "interrupted", "end of training"})
    return "", ["train as before: no gain is proven", *longer]


def how_to_search_longer(result: Result) -> str:
    """How to continue with twice the budget; no whole command, since a result does not hold all options of its own."""
    if is_live(result):
        return "to try more, repeat your command: its search begins anew, and goes further in a longer training"
    budget = math.ceil(2 * result.constraints.budget_seconds)
    place = " (before --)" if result.workload.script is not None else ""
    options = f"--budget {budget}s{place}, and with --resume unless it has --join"
    return f"to try more, repeat your command with all its options, but with {options}"


def is_live(result: Result) -> bool:
    """Whether the result is from `autotune train`."""
    return result.constraints.sampler == "none"


def why_not_measured(result: Result) -> str:
    """Why a result lacks what a tuning measures after its search."""
    return LIVE if is_live(result) else "no time was left, or it failed"


# Figures.


def knob_text(knob: str, value: Any) -> str:
    """A knob's value as you would type it; an argument of `build()` that a config does not give keeps its default."""
    if value is None and knob not in KNOB_NAMES:
        return "build's own"
    if value is None or isinstance(value, (bool, int, float, str)):
        return format_scalar(value)
    return json.dumps(value)  # a file may hold any JSON


def settings_text(values: Mapping[str, Any], separator: str = " ") -> str:
    """Knobs and arguments of `build()` with their values: ``precision=bf16 num_workers=2``."""
    return separator.join(f"{knob}={knob_text(knob, value)}" for knob, value in values.items())


def ratios(interval: Interval) -> str:
    """An interval of ratios: ``1.47 – 1.53``."""
    return f"{ratio_text(interval.low).removesuffix('×')} – {ratio_text(interval.high).removesuffix('×')}"


def ratio_with_interval(compared: Speedup | Pair) -> str:
    """A ratio with its 95 % interval, ``0.83× (0.79 – 0.87)``."""
    return f"{ratio_text(compared.ratio)} ({ratios(compared.ci95)})"


def gain_text(ratio: float, interval: Interval) -> str:
    """A ratio, or ``unclear`` where its interval includes 1: a figure would look like a gain or a loss."""
    return "unclear" if interval.low <= 1 <= interval.high else ratio_text(ratio)


def bare_rate(rate: float) -> str:
    """A rate without its unit."""
    return format_rate(rate).removesuffix(" samples/s")


def figures(result: Result) -> Iterator[Figure]:
    """The figures of both sides."""

    def figure(label: str, read: Callable[[Side], str], parent: str = "") -> Figure:
        return Figure(label, read(result.baseline), read(result.best), parent)

    def score(side: Side) -> str:
        value = result.score_of(side)
        return UNKNOWN if value is None else objective.format(value)

    if not (objective := result.objective).is_rate:
        yield figure(objective.name.replace("_", " "), score)
    yield figure("rate", _rate)
    yield figure(INTERVAL, _interval, "rate")
    if samples := result.workload.samples:
        epoch = f"epoch of {samples:,}"
        yield figure(epoch, lambda side: _epoch(side, samples))
        yield figure(INTERVAL, lambda side: _epoch_interval(side, samples), epoch)
    yield figure("effective batch", _effective_batch)
    # On a CPU, the device's memory is the host's.
    if result.constraints.device != "cpu":
        yield figure("device memory", lambda side: _measured(side, "device_memory_bytes", format_bytes))
    if not is_live(result):  # whose sides train in one process
        yield figure("host memory", lambda side: _measured(side, "host_memory_bytes", format_bytes))
    yield figure("waiting for data", _waiting)


def changes(result: Result) -> list[Change]:
    """The changed knobs and arguments of `build()`."""
    worth = {row.knob: f"{gain_text(row.ratio, row.ci95)} ({ratios(row.ci95)})" for row in result.ablation}
    return [
        Change(knob, knob_text(knob, before), knob_text(knob, after), worth.get(knob, ""))
        for knob, (before, after) in result.changed_knobs.items()
    ]


def _effective_batch(side: Side) -> str:
    config = side.config
    return f"{config.effective_batch:,}" + (f" on {config.ranks} ranks" if config.ranks > 1 else "")


def _rate(side: Side) -> str:
    if side.measurement is None:
        return UNKNOWN
    return format_rate(side.measurement.samples_per_second)


def _interval(side: Side) -> str:
    interval = rate_interval(side)
    return f"{bare_rate(interval.low)} – {bare_rate(interval.high)}" if interval is not None else "none"


def _epoch(side: Side, samples: int) -> str:
    rate = side.measurement.samples_per_second if side.measurement else 0.0
    return format_seconds(samples / rate) if rate else UNKNOWN


def _epoch_interval(side: Side, samples: int) -> str:
    interval = rate_interval(side)
    if interval is None or not interval.low:
        return "none"
    return f"{format_seconds(samples / interval.high)} – {format_seconds(samples / interval.low)}"


def rate_interval(side: Side) -> Interval | None:
    """The interval of a side's rate in samples per second; None where a single block shows no spread."""
    if side.measurement is None or len(side.measurement.blocks) == 1:
        return None
    return side.measurement.ci95_samples_per_second


def _waiting(side: Side) -> str:
    return _measured(side, "data_wait_fraction", lambda share: f"{percent(share)} of the time")


def _measured(side: Side, field: str, text: Callable[[Any], str]) -> str:
    value = getattr(side.measurement, field, None)
    return UNKNOWN if value is None else text(value)


# Where the time goes.


def operators(result: Result) -> list[tuple[str, str, str]]:
    """The slowest operators, with seconds a sample before and after; a dash where a profile does not list one."""
    old, new = (
        {operator.name: operator.seconds for operator in profile.operators} if profile is not None else {}
        for profile in (result.diagnosis.before, result.diagnosis.after)
    )
    slowest = sorted({**old, **new}, key=lambda name: -max(old.get(name, 0.0), new.get(name, 0.0)))

    def time(side: dict[str, float], name: str) -> str:
        return format_seconds(side[name]) if name in side else "–"

    return [(name, time(old, name), time(new, name)) for name in slowest]


def sample_parts(result: Result) -> list[tuple[str, str, str]]:
    """The time of reading one sample: the whole, then each part with its place and time."""
    profiles = [profile for profile in (result.diagnosis.after, result.diagnosis.before) if profile is not None]
    sample = next((profile.sample for profile in profiles if profile.sample is not None), None)
    if sample is None:
        return []
    parts = [(part.name, part.where or "built in", format_seconds(part.seconds)) for part in sample.parts]
    return [("reading one sample", "", format_seconds(sample.seconds)), *parts]


# The gain, and its evidence.


def spread_text(speedup: Speedup) -> str:
    """How certain a speed-up is: ``95 % interval 1.47 – 1.53, 5 interleaved pairs``."""
    return f"{INTERVAL} {ratios(speedup.ci95)}, {speedup.pairs} interleaved pair{'' if speedup.pairs == 1 else 's'}"


def proof_texts(result: Result) -> list[str]:
    """Further evidence for a speed-up: one long run of each side, the spread between processes, and epochs."""
    speedup = result.speedup
    if speedup is None:
        return []
    texts = []
    if (run := speedup.uninterrupted) is not None:
        shown = f"one uninterrupted run of each side gives {ratio_text(run.ratio)}"
        if run.agrees:
            texts.append(f"{shown}, as the rounds predict ({ratios(run.expected)})")
        elif run.ratio < run.expected.low:
            texts.append(
                f"{shown}, less than the rounds predict ({ratios(run.expected)}): your training runs without turns, "
                "so the claim is the lower one"
            )
        else:
            texts.append(f"{shown}, more than the rounds predict ({ratios(run.expected)}): the claim is the lower one")
    if speedup.spreads is not None:
        before, after = speedup.spreads
        texts.append(
            f"from process to process the rate varies by {percent(after)} (before: {percent(before)}; one standard "
            "deviation)"
        )
    if speedup.epochs is not None and speedup.epochs < 1:
        share = percent(speedup.epochs) if speedup.epochs >= 0.01 else "less than 1 %"
        texts.append(f"the rounds cover {share} of an epoch, from places all over it")
    return texts


def verdict(result: Result) -> Verdict:
    """Whether there is a confirmed speed-up: the figure, or the reason why there is none."""
    speedup, objective = result.speedup, result.objective
    gained = f"confirmed {objective.gain}"
    if speedup is None:
        reason = result.speedup_reason or "it was not measured in pairs"
        return Verdict(confirmed=False, words=f"no {gained}", reason=reason)
    gain = f"{ratio_text(speedup.ratio)} ({spread_text(speedup)})"
    if speedup.confirmed:
        return Verdict(confirmed=True, words=gained, reason=f"{gain}{beside_others(result)}")
    if speedup.ci95.high < 1:
        doubt = "it is slower" if objective.is_rate else "it is worse"
    else:
        doubt = f"the interval {'includes' if speedup.ci95.low <= 1 else 'comes close to'} 1, so there may be no gain"
    reason = f"{gain}; {result.speedup_reason or doubt}"
    return Verdict(confirmed=False, words=f"no {gained}", reason=reason)


def beside_others(result: Result) -> str:
    """What to add to a gain that was measured while other load took much CPU: both sides suffer, but not alike."""
    sides = (result.baseline.measurement, result.best.measurement)
    summaries = [side.telemetry for side in sides if side is not None and side.telemetry is not None]
    taken = max((summary.taken_fraction for summary in summaries), default=0.0)
    if taken <= FOREIGN_CPU_LIMIT:
        return ""
    return (
        f"; measured while other load took {percent(taken)} of the CPUs: the gain may be larger or smaller without "
        "it, so tune again when it has ended"
    )


def turn_text(playing: Sequence[TrialRecord]) -> str:
    """The players of a turn, and its length: ``turn 3, 1.9 s: 4 against num_workers=2 (expected gain)``."""
    partner = next((trial.partner for trial in playing if trial.partner is not None), None)
    against = "nothing" if partner is None else settings_text(partner)
    stages = ", ".join(dict.fromkeys(trial.stage for trial in playing))
    seconds = format_seconds(sum(trial.seconds for trial in playing))
    return f"turn {playing[0].turn}, {seconds}: {len(playing)} against {against or 'the baseline'} ({stages})"


def duet_text(trial: TrialRecord) -> str | None:
    """How a burst compared with its partner: ``1.12× (1.080 – 1.16) over the best so far``."""
    if trial.partner is None or trial.ratio is None or trial.ci95 is None:
        return None
    partner = "the best so far" if trial.partner else "the baseline"
    return f"{ratio_text(trial.ratio)} ({ratios(trial.ci95)}) over {partner}"


def trial_notes(trial: TrialRecord) -> list[str]:
    """Remarks on a burst: its duet, the time of compiling, disturbances."""
    notes = [duet] if (duet := duet_text(trial)) is not None else []
    if trial.compile_seconds is not None:
        notes.append(f"compiling took {format_seconds(trial.compile_seconds)}")
    if trial.disturbance is not None:
        notes.append(f"disturbed: {trial.disturbance}")
    return notes


def break_even(result: Result) -> str | None:
    """After how many optimizer steps the speed-up pays for the work that is done once, before training."""
    before, after, speedup = result.baseline.measurement, result.best.measurement, result.speedup
    if before is None or after is None:
        return None
    once = {
        "compiling": (after.compile_seconds or 0.0) - (before.compile_seconds or 0.0),
        "collating the data set": (after.placement_seconds or 0.0) - (before.placement_seconds or 0.0),
    }
    once = {what: seconds for what, seconds in once.items() if seconds > 0}
    if not once:
        return None
    if speedup is None or not speedup.confirmed or speedup.ratio <= 1 or not result.objective.is_rate:
        return None
    steps_missed = sum(once.values()) * before.samples_per_second / result.best.config.effective_batch

    def steps(ratio: float) -> str:
        return f"{steps_missed * ratio / (ratio - 1):,.0f}"

    spread = f"{INTERVAL} {steps(speedup.ci95.high)} – {steps(speedup.ci95.low)}"
    cost = " and ".join(f"{what} takes {format_seconds(seconds)}" for what, seconds in once.items())
    return f"{cost}; break-even after about {steps(speedup.ratio)} optimizer steps ({spread})"


def numerics_text(result: Result, caveat: str = f" ({CAVEAT})") -> str | None:
    """Whether the config still trains the same thing, with a caveat if it does; None where the file does not say."""
    numerics = result.numerics
    if numerics is None:
        return None
    words = {"agrees": "agrees", "disagrees": "DISAGREES", "unchanged": "unchanged", "unchecked": "not checked"}
    return f"{words[numerics.outcome]}: {numerics.reason}{caveat * (numerics.outcome == 'agrees')}"


def bottleneck_text(result: Result) -> str:
    """The part that limits training now, and the share of the time that it takes."""
    if (part := result.bottleneck) is None:
        return "not found"
    words = "neither computing nor waiting for data explains" if part == "overhead" else "busy"
    return f"{part} ({words} {percent(min(result.time_shares[part], 1.0))} of the time)"


def ceilings_text(result: Result) -> str | None:
    """The rate that each part alone could reach; None where no part was measured."""
    rates = [f"{part} {format_rate(rate)}" for part, rate in result.diagnosis.ceilings.items() if rate is not None]
    return f"what each part alone could reach: {', '.join(rates)}" if rates else None


def peak_texts(result: Result) -> list[str]:
    """Whether this speed is normal on this machine: a sentence for each part whose peak was measured."""
    sentences: list[str] = []
    for part, words in _PEAKS.items():
        after, before = result.peak_share(part, "best"), result.peak_share(part, "baseline")
        if after is None:
            continue
        line = words.name.format(percent(after.share), words.unit(after.peak), after.precision)
        line += f" (before: {percent(before.share)})" if before is not None else ""
        meaning = words.low if after.share < LOW_SHARE else words.high if after.share >= HIGH_SHARE else ""
        sentences.append(f"{line}{': ' * bool(meaning)}{meaning}")
    return sentences


def growth_texts(result: Result) -> list[str]:
    """What grew in each process of the proof, and when it runs out: a sentence each."""
    by_kind = {growth.what: growth for growth in reversed(result.diagnosis.growth)}
    by_kind |= {growth.what: growth for growth in result.diagnosis.growth if growth.side == "best"}
    shown = dict.fromkeys(growth.what for growth in result.diagnosis.growth)
    return [_growth_text(result, by_kind[what]) for what in shown]


def _growth_text(result: Result, growth: Growth) -> str:
    if growth.what == "GPU clock":
        fall = f"{60 * growth.per_second:.0f} MHz a minute"
        return f"the GPU's clock falls by {fall} while it trains: a long training is slower than what was timed"

    def amount(figure: float) -> str:
        return rounded(figure) if growth.what == "open files" else format_bytes(figure)

    spread = f"{INTERVAL} {amount(growth.ci95.low)} – {amount(growth.ci95.high)}"
    line = f"{_GROWING[growth.what]} by {amount(growth.per_second)} a second ({spread})"
    if result.changed_knobs:
        sides = {other.side for other in result.diagnosis.growth if other.what == growth.what}
        seen = "only before tuning" if growth.side == "baseline" else "only after tuning"
        line += ", as before tuning" if len(sides) == 2 else f", seen {seen}"
    line += f": {amount(growth.per_epoch)} an epoch," if growth.per_epoch is not None else ":"
    line += f" {amount(growth.per_day)} a day"
    if growth.full_seconds is not None:
        line += f"; if it goes on, none is left after {format_seconds(growth.full_seconds)}"
    return line + ("; what is kept of each sample stops with the first epoch" if growth.within_epoch else "")


def headroom_text(headroom: Headroom) -> str:
    """What loading costs before tuning, not only by waiting, and the most that a faster loader could gain."""
    spread = f" ({INTERVAL} {ratios(headroom.ci95)})" if headroom.ci95 is not None else ""
    if headroom.ci95 is not None and headroom.ci95.high > VAGUE * headroom.ci95.low:
        return f"before tuning, the cost of loading varied too much to state{spread}"
    if headroom.ratio <= 1:
        return f"before tuning, loading costs nothing measurable{spread}"
    return (
        f"before tuning, loading costs {percent(headroom.loader_fraction)} of the time, its share of the processors "
        f"included: a faster loader gives at most {ratio_text(headroom.ratio)}{spread}"
    )


def evaluation_text(result: Result) -> str | None:
    """The batch size for evaluation, and why no larger one; None where you did not request it."""
    evaluation = result.evaluation
    if evaluation is None:
        return None
    last, training = evaluation.tried[-1] if evaluation.tried else None, result.best.config.batch_size
    why = ""
    if last is not None and last.batch_size > evaluation.batch_size:
        ending = f"is {ratio_text(last.ratio)} as fast" if last.ratio is not None else f"ended as {last.outcome.value}"
        why = f"; {last.batch_size} {ending}"
    size = evaluation.batch_size
    faster = f", {ratio_text(evaluation.ratio)} as fast as batches of {training}" if size != training else ""
    rate = f" at {format_rate(evaluation.samples_per_second)}" if evaluation.samples_per_second is not None else ""
    return f"evaluate in batches of {size}{rate}{faster}{why}"


def scaling_text(result: Result) -> str | None:
    """How many ranks pay; None where one rank trains, or there was no time to measure it."""
    scaling = result.scaling
    if scaling is None or len(scaling.trained) < 2:
        return None
    speeds = []
    for step in scaling.trained:
        share = scaling.efficiency(step)
        speeds.append(f"{step.ranks}: {ratio_text(step.speed or 0)}" + (f" ({percent(share)})" if share else ""))
    ranks = result.best.config.ranks
    advice = ""
    if scaling.trained[-1].ranks != ranks:
        failed = [f"ended as {step.outcome.value}" for step in scaling.steps if step.ranks == ranks]
        advice = f"; {ranks} {failed[0] if failed else 'were not measured'}"
    elif scaling.paying != ranks:
        advice = f"; more than {scaling.paying} bring no certain gain"
    return f"speed by ranks, and efficiency of each: {', '.join(speeds)}{advice}"


def remarks(result: Result) -> list[str]:
    """When a gain pays, the batch size for evaluation, how many ranks pay, and a shared error, as far as known."""
    texts = (break_even(result), evaluation_text(result), scaling_text(result), _shared_error(result))
    return [text for text in texts if text is not None]


def _shared_error(result: Result) -> str | None:
    """The error that most configs crashed with, if several did: it is likely that of the user's code, not theirs."""
    crashed = (trial for trial in result.trials if trial.outcome is Outcome.CRASHED and trial.failure)
    configs = {(trial.failure, settings_text(trial.changes)) for trial in crashed}
    failure, count = next(iter(Counter(failure for failure, _ in configs).most_common(1)), (None, 0))
    if count < 2:
        return None
    among = ", the baseline among them" if (failure, "") in configs else ""
    return f"{count} configs crashed alike{among}: {failure}; if your own code raises this, fix it and tune again"


def search_text(result: Result) -> str:
    """How the search went, in one line."""
    search = result.search
    if is_live(result):
        settings = "1 setting" if search.bursts == 1 else f"{search.bursts} settings"
        return f"{settings} tried in {format_seconds(search.seconds)} of training; stopped by: {result.stopped_by}"
    failed = [f"{count} {outcome}" for outcome, count in search.outcomes.items() if outcome != "ok" and count]
    bursts = "1 burst" if search.bursts == 1 else f"{search.bursts} bursts"
    line = f"{bursts} in {format_seconds(search.seconds)}"
    line += f", and {search.resumed_bursts} that were known" if search.resumed_bursts else ""
    line += f" ({', '.join(failed)})" if failed else ""
    return f"{line}, {percent(search.measuring_fraction)} of the time measuring; stopped by: {result.stopped_by}"


def skipped_lines(result: Result, *, every: bool) -> Iterator[str]:
    """The knobs that were not searched, one line for each reason.

    Args:
        result: The result.
        every: Whether to include reasons that no option lifts. After a semicolon, a reason names the option that does.
    """
    by_reason: dict[str, list[str]] = {}
    for knob, why in result.search.skipped_knobs.items():
        by_reason.setdefault(why, []).append(knob)
    for why, knobs in by_reason.items():
        if every or "--" in why.partition("; ")[2]:
            yield f"{', '.join(knobs)}: {why}"


def warm_start_text(record: WarmStartRecord) -> str:
    """The outcome of a warm start, in a sentence."""
    other = "" if record.same_workload else ", measured on another workload"
    adapted = f" (here {', '.join(record.adapted)})" if record.adapted else ""
    return f"warm start from {record.machine} ({record.source}{other}){adapted}: {record.verdict}"
