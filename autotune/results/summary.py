"""What a result says, in rows and sentences of plain text: the terminal and the report word it alike."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from autotune.knobs import KNOB_NAMES, format_scalar
from autotune.measuring import CAVEAT, FEWEST_PAIRS, FOREIGN_CPU_LIMIT, Growth, Headroom, Interval, Speedup
from autotune.results.result import Result, Side, TrialRecord, WarmStartRecord
from autotune.units import format_bytes, format_flops, format_rate, format_seconds, rounded
from autotune.wording import percent, ratio_text

UNKNOWN = "not measured"
INTERVAL = "95 % interval"


class Figure(NamedTuple):
    """One figure of both sides; `of` is the row that an interval belongs to."""

    label: str
    before: str
    after: str
    of: str = ""


class Change(NamedTuple):
    """A knob that was changed, and what that was worth where it is known."""

    knob: str
    before: str
    after: str
    worth: str


class _Peak(NamedTuple):
    """How a share of a peak is worded: the share, the peak's unit, and what a low or a high one usually means."""

    name: str
    unit: Callable[[float], str]
    low: str
    high: str


LOW_SHARE, HIGH_SHARE = 0.3, 0.9
"""Of a peak, below and from which on it has a meaning. Not tuned: trainings of large models reach a third to a half."""
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
        "they are not the limit; activations come on top, and are not counted",
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
    """What was tuned, and where."""
    return f"{result.workload.name} ({result.workload.target}) on {result.machine}"


def unfinished(result: Result) -> str | None:
    """Why a partial result is one."""
    if result.status != "partial":
        return None
    why = "tuning was interrupted" if result.stopped_by == "interrupted" else "tuning did not finish"
    return f"{why}; what follows was known by then"


def how_to_train(result: Result, path: Path) -> str:
    """What trains with a result: the command that launches a script, else the lines of Python for one's own.

    Args:
        result: That was found.
        path: Its file, as the script will name it.
    """
    script = result.workload.script
    if script is not None:
        return f"autotune launch {shlex.quote(path.as_posix())} -- {shlex.join(script.command)}"
    lines = [
        "import autotune",
        f"tuned = autotune.load({json.dumps(path.as_posix(), ensure_ascii=False)})",
        "loader = tuned.dataloader(dataset, shuffle=True)",
        "model, optimizer = tuned.prepare(model, optimizer)",
    ]
    if result.best.config.compile_mode == "loss":
        lines.append("loss = tuned.compiled_loss(loss)")
    return "\n".join(lines)


# Figures.


def knob_text(knob: str, value: Any) -> str:
    """A knob's value as it is typed; an argument of `build()` that a config does not give has its own default."""
    if value is None and knob not in KNOB_NAMES:
        return "build's own"
    if value is None or isinstance(value, (bool, int, float, str)):
        return format_scalar(value)
    return json.dumps(value)  # a file may hold any kind


def ratios(interval: Interval) -> str:
    """An interval of ratios: ``1.47 – 1.53``."""
    return f"{ratio_text(interval.low).removesuffix('×')} – {ratio_text(interval.high).removesuffix('×')}"


def too_few_pairs(pairs: int) -> str | None:
    """That there are too few pairs of processes for a finding; None where there are enough."""
    if pairs >= FEWEST_PAIRS:
        return None
    return f"{pairs} pair{'' if pairs == 1 else 's'}: too few to tell"


def sureness(ci95: Interval, pairs: int) -> str:
    """How sure a ratio is: its interval ``1.47 – 1.53``, or ``2 pairs: too few to tell``."""
    return too_few_pairs(pairs) or ratios(ci95)


def bare_rate(rate: float) -> str:
    """A rate without its unit."""
    return format_rate(rate).removesuffix(" samples/s")


def figures(result: Result) -> Iterator[Figure]:
    """What both sides were measured to do."""

    def figure(label: str, read: Callable[[Side], str], of: str = "") -> Figure:
        return Figure(label, read(result.baseline), read(result.best), of)

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
    # Without a device of its own, the device's memory is the host's.
    if result.constraints.device != "cpu":
        yield figure("device memory", lambda side: _measured(side, "device_memory_bytes", format_bytes))
    yield figure("host memory", lambda side: _measured(side, "host_memory_bytes", format_bytes))
    waiting = "data_wait_fraction"
    yield figure("waiting for data", lambda side: _measured(side, waiting, lambda of: f"{percent(of)} of the time"))


def changes(result: Result) -> list[Change]:
    """The changed knobs and arguments of `build()`."""
    worth = {row.knob: f"{ratio_text(row.ratio)} ({ratios(row.ci95)})" for row in result.ablation}
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
    low, high = rate_interval(side)
    return f"{bare_rate(low)} – {bare_rate(high)}" if high else "none"


def _epoch(side: Side, samples: int) -> str:
    rate = side.measurement.samples_per_second if side.measurement else 0.0
    return format_seconds(samples / rate) if rate else UNKNOWN


def _epoch_interval(side: Side, samples: int) -> str:
    low, high = rate_interval(side)
    return f"{format_seconds(samples / high)} – {format_seconds(samples / low)}" if low else "none"


def rate_interval(side: Side) -> Interval:
    """The ends of a side's rate in samples per second; zeros where there is no spread to tell them by."""
    if side.measurement is None or len(side.measurement.blocks) == 1:
        return Interval(0.0, 0.0)
    return side.measurement.ci95_samples_per_second


def _measured(side: Side, field: str, text: Callable[[Any], str]) -> str:
    value = getattr(side.measurement, field, None)
    return UNKNOWN if value is None else text(value)


# Where the time goes.


def operators(result: Result) -> list[tuple[str, str, str]]:
    """The slowest operators, time a sample before and after; one that is not among a profile's slowest has none."""
    old, new = (
        {one.name: one.seconds for one in profile.operators} if profile is not None else {}
        for profile in (result.diagnosis.before, result.diagnosis.after)
    )
    slowest = sorted({**old, **new}, key=lambda name: -max(old.get(name, 0.0), new.get(name, 0.0)))

    def time(side: dict[str, float], name: str) -> str:
        return format_seconds(side[name]) if name in side else "–"

    return [(name, time(old, name), time(new, name)) for name in slowest]


def sample_parts(result: Result) -> list[tuple[str, str, str]]:
    """What reading one sample takes: the whole, then its parts, each with where it is and its time."""
    profiles = [profile for profile in (result.diagnosis.after, result.diagnosis.before) if profile is not None]
    sample = next((profile.sample for profile in profiles if profile.sample is not None), None)
    if sample is None:
        return []
    parts = [(part.name, part.where or "built in", format_seconds(part.seconds)) for part in sample.parts]
    return [("reading one sample", "", format_seconds(sample.seconds)), *parts]


# What it was worth, and why.


def spread_text(speedup: Speedup) -> str:
    """How sure a speed-up is: ``95 % interval 1.47 – 1.53, 5 interleaved pairs``; or that so few pairs do not tell."""
    spread = f"{INTERVAL} {ratios(speedup.ci95)}, {speedup.pairs} interleaved pairs"
    return too_few_pairs(speedup.pairs) or spread


def proof_texts(result: Result) -> list[str]:
    """What stands behind a speed-up beside its interval: one long run of each side, processes, and epochs."""
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
                f"{shown}, less than the rounds predict ({ratios(run.expected)}): training takes no turns, so the "
                "claim is the lower one"
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
        texts.append(f"the rounds cover {percent(speedup.epochs)} of an epoch, from places all over it")
    return texts


def verdict(result: Result) -> Verdict:
    """Whether there is a confirmed speed-up: the figure, or the reason why there is none."""
    speedup = result.speedup
    if speedup is None:
        reason = result.speedup_reason or "it was not measured in pairs"
        return Verdict(confirmed=False, words="no confirmed speed-up", reason=reason)
    found = f"{ratio_text(speedup.ratio)} ({spread_text(speedup)})"
    if speedup.confirmed:
        reason = "; ".join(filter(None, (found, _beside_others(result))))
        return Verdict(confirmed=True, words="confirmed speed-up", reason=reason)
    doubt = "the interval includes 1" if speedup.ci95.low <= 1 else "the interval comes close to 1"
    too_close = None if too_few_pairs(speedup.pairs) else f"{doubt}, so there may be no gain"
    reasons = [reason for reason in (found, result.speedup_reason or too_close) if reason]
    return Verdict(confirmed=False, words="no confirmed speed-up", reason="; ".join(reasons))


def _beside_others(result: Result) -> str | None:
    """That a gain was measured beside others who took much of the CPUs: both sides suffer, but not alike."""
    sides = (result.baseline.measurement, result.best.measurement)
    summaries = [side.telemetry for side in sides if side is not None and side.telemetry is not None]
    taken = max((summary.taken_fraction for summary in summaries), default=0.0)
    if taken <= FOREIGN_CPU_LIMIT:
        return None
    return (
        f"beside others, who took {percent(taken)} of the CPUs: alone it may gain more or less, so tune again once "
        "they are done"
    )


def turn_text(trials: Sequence[TrialRecord], turn: int) -> str:
    """Who played in a turn, and how long: ``turn 3, 1.9 s: 4 against num_workers=2 (expected gain)``."""
    playing = [trial for trial in trials if trial.turn == turn]
    partner = next((trial.partner for trial in playing if trial.partner is not None), None)
    against = "nothing" if partner is None else " ".join(f"{k}={knob_text(k, v)}" for k, v in partner.items())
    stages = ", ".join(dict.fromkeys(trial.stage for trial in playing))
    seconds = format_seconds(sum(trial.seconds for trial in playing))
    return f"turn {turn}, {seconds}: {len(playing)} against {against or 'the baseline'} ({stages})"


def duet_text(trial: TrialRecord) -> str | None:
    """How a burst compared with what it trained beside: ``1.12× (1.080 – 1.16) over the best so far``."""
    if trial.partner is None or trial.ratio is None or trial.ci95 is None:
        return None
    partner = "the best so far" if trial.partner else "the baseline"
    return f"{ratio_text(trial.ratio)} ({ratios(trial.ci95)}) over {partner}"


def trial_notes(trial: TrialRecord) -> list[str]:
    """What else there is to say of a burst: its duet, what compiling took, what disturbed it."""
    notes = [duet] if (duet := duet_text(trial)) is not None else []
    if trial.compile_seconds is not None:
        notes.append(f"compiling took {format_seconds(trial.compile_seconds)}")
    if trial.disturbance is not None:
        notes.append(f"disturbed: {trial.disturbance}")
    return notes


def break_even(result: Result) -> str | None:
    """After how many optimizer steps what is done once, before training, has paid for itself, by the speed-up."""
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


def numerics_text(result: Result) -> str | None:
    """Whether the config still trains the same thing; None where the file does not say."""
    found = result.numerics
    if found is None:
        return None
    caveat = f" ({CAVEAT})" if found.outcome == "agrees" else ""
    words = {"agrees": "agrees", "disagrees": "DISAGREES", "unchanged": "unchanged", "unchecked": "not checked"}
    return f"{words[found.outcome]}: {found.reason}{caveat}"


def ceilings_text(result: Result) -> str | None:
    """What each part alone could reach; None where no part was measured."""
    known = [f"{part} {format_rate(rate)}" for part, rate in result.diagnosis.ceilings.items() if rate is not None]
    return f"what each part alone could reach: {', '.join(known)}" if known else None


def peak_texts(result: Result) -> list[str]:
    """Whether this speed is normal on this machine: a sentence for each part whose peak was measured."""
    said: list[str] = []
    for part, words in _PEAKS.items():
        found, before = result.peak_share(part, "best"), result.peak_share(part, "baseline")
        if found is None:
            continue
        line = words.name.format(percent(found.share), words.unit(found.peak), found.precision)
        line += f" (before: {percent(before.share)})" if before is not None else ""
        meaning = words.low if found.share < LOW_SHARE else words.high if found.share >= HIGH_SHARE else ""
        said.append(f"{line}{': ' * bool(meaning)}{meaning}")
    return said


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
        sides = {one.side for one in result.diagnosis.growth if one.what == growth.what}
        seen = "before tuning alone" if growth.side == "baseline" else "after tuning alone"
        line += ", as before tuning" if len(sides) == 2 else f", seen {seen}"
    line += f": {amount(growth.per_epoch)} an epoch," if growth.per_epoch is not None else ":"
    line += f" {amount(growth.per_day)} a day"
    if growth.full_seconds is not None:
        line += f"; if it goes on, none is left after {format_seconds(growth.full_seconds)}"
    return line + ("; what is kept of each sample stops with the first epoch" if growth.within_epoch else "")


def headroom_text(headroom: Headroom) -> str:
    """What loading costs before tuning, and what a faster loader could bring at most."""
    spread = f" ({INTERVAL} {ratios(headroom.ci95)})" if headroom.ci95 is not None else ""
    if headroom.ratio <= 1:
        return f"before tuning, loading costs nothing that could be measured{spread}"
    return (
        f"before tuning, loading costs {percent(headroom.loader_fraction)} of the time: a faster "
        f"loader gives at most {ratio_text(headroom.ratio)}{spread}"
    )


def evaluation_text(result: Result) -> str | None:
    """The batch to evaluate with, and why no larger one; None where that was not asked for."""
    found = result.evaluation
    if found is None:
        return None
    last, training = found.tried[-1] if found.tried else None, result.best.config.batch_size
    why = ""
    if last is not None and last.batch_size > found.batch_size:
        came = f"{ratio_text(last.ratio)} as fast" if last.ratio is not None else f"ended as {last.outcome.value}"
        why = f"; {last.batch_size} {came}" if last.ratio is None else f"; {last.batch_size} is {came}"
    faster = f", {ratio_text(found.ratio)} as fast as batches of {training}" if found.batch_size != training else ""
    rate = f" at {format_rate(found.samples_per_second)}" if found.samples_per_second is not None else ""
    return f"evaluate in batches of {found.batch_size}{rate}{faster}{why}"


def scaling_text(result: Result) -> str | None:
    """How many ranks pay; None where one trains, or there was no time to see."""
    found = result.scaling
    if found is None or len(found.trained) < 2:
        return None
    told = []
    for step in found.trained:
        share = found.efficiency(step)
        told.append(f"{step.ranks}: {ratio_text(step.speed or 0)}" + (f" ({percent(share)})" if share else ""))
    ranks = result.best.config.ranks
    advice = "" if found.paying == ranks else f"; more than {found.paying} gain nothing beyond doubt"
    return f"speed by ranks, and efficiency of each: {', '.join(told)}{advice}"


def search_text(result: Result) -> str:
    """How the search went, in one line."""
    search = result.search
    failed = [f"{count} {outcome}" for outcome, count in search.outcomes.items() if outcome != "ok" and count]
    line = f"{search.bursts} bursts in {format_seconds(search.seconds)}"
    line += f", and {search.resumed_bursts} that were known" if search.resumed_bursts else ""
    line += f" ({', '.join(failed)})" if failed else ""
    return f"{line}, {percent(search.measuring_fraction)} of the time measuring; stopped by: {result.stopped_by}"


def skipped_text(result: Result) -> str:
    """The knobs that were not searched, those of one reason together."""
    by_reason: dict[str, list[str]] = {}
    for knob, why in result.search.skipped_knobs.items():
        by_reason.setdefault(why, []).append(knob)
    return "; ".join(f"{', '.join(knobs)} ({why})" for why, knobs in by_reason.items())


def warm_start_text(record: WarmStartRecord) -> str:
    """What became of a candidate, for a person."""
    other = "" if record.same_workload else ", measured on another workload"
    adapted = f" (here {', '.join(record.adapted)})" if record.adapted else ""
    return f"warm start from {record.machine} ({record.source}{other}){adapted}: {record.verdict}"
