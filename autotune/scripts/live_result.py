"""Makes the result of a training that was tuned while it ran, from the events that it reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import cast

from autotune import __version__
from autotune.hardware import DeviceKind, Hardware
from autotune.knobs import WorkloadFacts
from autotune.knobs.while_training import played_on
from autotune.measuring import Measurement, Outcome, Speedup
from autotune.measuring.records import Block
from autotune.results.live import Knobs, Story
from autotune.results.result import (
    Constraints,
    Diagnosis,
    Result,
    ScriptRecord,
    SearchRecord,
    Side,
    TrialRecord,
    WorkloadRecord,
)
from autotune.results.summary import ratios
from autotune.scripts.facts import facts_of
from autotune.scripts.script import Script
from autotune.scripts.seen import SeenScript
from autotune.units import format_seconds
from autotune.wording import ratio_text

_ENDINGS = {"failed": Outcome.CRASHED, "too costly": Outcome.TIMEOUT}


def live_result(story: Story, script: Script, hardware: Hardware, seen: SeenScript, record: ScriptRecord) -> Result:
    """The result of a training: complete, or partial if the search did not finish.

    Args:
        story: The events so far.
        script: The command.
        hardware: The machine.
        seen: The script as a look sees it.
        record: The description by which `launch` finds the training loop again.
    """
    facts, trials, is_over = facts_of(seen, script), tuple(_trials(story)), story.over is not None
    device = cast("DeviceKind", "rocm" if seen.device == "cuda" and "rocm" in hardware.devices else seen.device)
    speedup = _speedup(story)
    waiting, allowed = (story.facts.wait_share, story.facts.allowed) if story.facts is not None else (None, ())
    return Result(
        status="complete" if is_over else "partial",
        created=datetime.now(timezone.utc),
        workload=WorkloadRecord.of(facts, {}, record),
        hardware=hardware,
        software=hardware.software.model_copy(update={"autotune": __version__}),
        baseline=Side(config=facts.baseline, measurement=_measured(story, {}, seen, facts)),
        best=Side(
            config=facts.baseline.replace(**story.won), measurement=_measured(story, story.won, seen, facts)
        ),
        speedup=speedup,
        speedup_reason=None if speedup is not None else _why_none(story),
        constraints=Constraints(
            budget_seconds=story.searched_seconds, device=device, effective_batch=facts.baseline.effective_batch,
            memory_target=1.0, utilization_target=1.0, only=played_on(device, allowed), sampler="none", seed=0,
        ),
        stopped_by="exhausted" if is_over else "interrupted",
        search=SearchRecord(
            seconds=story.searched_seconds, bursts=len(trials), measuring_fraction=1.0, skipped_knobs=story.left,
            outcomes=dict(Counter(trial.outcome.value for trial in trials)), notes=tuple(_notes(story)),
        ),
        trials=trials,
        diagnosis=Diagnosis(data_wait_fraction=waiting),
    )  # fmt: skip


def _measured(story: Story, knobs: Knobs, seen: SeenScript, facts: WorkloadFacts) -> Measurement | None:
    """What the blocks of one setting show; None where none has played to its end."""
    samples = facts.baseline.effective_batch
    blocks = tuple(
        Block(samples=samples * one.timed_steps, seconds=one.timed_seconds, data_wait_seconds=one.waited_seconds)
        for one in story.blocks
        if one.knobs == knobs
    )
    if not blocks:
        return None
    return Measurement(
        blocks=blocks, start_seconds=seen.seconds_to_loop, build_seconds=0.0, warmup_seconds=story.warmup_seconds,
        epoch_samples=facts.samples,
    )  # fmt: skip


def _speedup(story: Story) -> Speedup | None:
    """The speed-up of all winners together; its pairs are those of the winner with the fewest."""
    if (gained := story.gained) is None:
        return None
    fewest = min(winner.pairs for winner in story.winners)
    return Speedup(ratio=gained[0], ci95=gained[1], pairs=fewest, anytime=True)


def _why_none(story: Story) -> str:
    """Why the script keeps its own setting."""
    measured = {one.name: one.ratio for one in story.candidates.values() if one.ratio and one.pairs}
    if not measured:
        return "no setting was played to its end" if story.offered else "there was nothing to try while it trained"
    best = story.candidates[max(measured, key=lambda name: measured[name])]
    spread = f" ({ratios(best.interval)})" if best.interval is not None else ""
    reached = f"{best.name} reached {ratio_text(measured[best.name])}{spread}"
    return f"no setting was clearly faster: {reached}"


def _trials(story: Story) -> Iterator[TrialRecord]:
    """A record per candidate, each compared with the winners before it."""
    held: Knobs = {}
    for one in story.candidates.values():
        ending = _ENDINGS.get(one.verdict or "", Outcome.OK)
        ending_words = f"it {one.verdict}" if one.verdict else "training ended before it was decided"
        yield TrialRecord(
            stage="training", reason=one.reason or ending_words, changes=held | one.knobs, outcome=ending,
            failure=None if ending is Outcome.OK else one.reason or ending_words, partner=dict(held),
            ratio=one.ratio if one.pairs else None, ci95=one.interval if one.pairs else None, seconds=one.seconds,
        )  # fmt: skip
        held |= one.knobs if one.verdict == "won" else {}


def _notes(story: Story) -> Iterator[str]:
    yield "tuned while it trained: pairs are neighbouring blocks of steps of one training"
    if (over := story.over) is not None:
        yield f"the search has cost {format_seconds(over.cost_seconds)} of training ({over.why})"
    if story.facts is not None and story.facts.moves_augmentation and story.won.get("num_workers"):
        yield "workers draw the random numbers of reading: augmentation has the same distribution, and other numbers"
