"""The parent of a training that is tuned while it runs: it plans candidates, keeps the log, makes the result.

All decisions are made in the training process. Whatever happens here, the training goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from autotune import __version__
from autotune.bursts.hosts.child import events_in
from autotune.files import stem_of
from autotune.hardware import Hardware, probe_host
from autotune.knobs import LiveFacts, WorkloadFacts
from autotune.knobs.registry import READS
from autotune.knobs.while_training import played_on
from autotune.measuring import Measurement, Outcome, Speedup
from autotune.measuring.records import Block
from autotune.results.files import keep_document
from autotune.results.live import Knobs, LiveLog, Story, moving
from autotune.results.result import (
    Constraints,
    Diagnosis,
    Result,
    ScriptRecord,
    SearchRecord,
    Side,
    TrialRecord,
    WorkloadRecord,
    place_of_partial,
)
from autotune.results.summary import ratios, what_next
from autotune.scripts.facts import as_trained, facts_of, record_of
from autotune.scripts.script import Script
from autotune.scripts.seen import SeenScript
from autotune.scripts.training import Training
from autotune.units import format_seconds
from autotune.wording import ratio_text

LAST_SECONDS = 2.0
"""After the script has ended, its last events are read within this time. Not tuned: reading takes milliseconds."""


class Live:
    """A training that is tuned while it runs.

    Args:
        script: The command.
        out: The result file; None: by the script's name in ``results/<machine>``.
        folder: A folder for the socket, and for the files by which the recorder reports that it has arrived.
        say: Shows a sentence to the user.
        allowed: Knobs that may change what is learned.
    """

    def __init__(
        self, script: Script, out: Path | None, folder: Path, say: Callable[[str], None], allowed: Sequence[str] = ()
    ) -> None:
        self.log = LiveLog(say)
        self._script, self._out, self._folder, self._say, self._allowed = script, out, folder, say, allowed
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(folder / "live"))
        self._listener.listen()
        self._lock = threading.Lock()
        self._tuned: tuple[socket.socket, int] | None = None  # the connection of the process that is tuned, and its id
        self._is_told_of_others = False
        self._seen: dict[int, tuple[SeenScript, ScriptRecord]] = {}
        self._why_untuned: str | None = None
        self._why_unseen = "the script ended before autotune had seen enough of its training"
        self._hardware: Hardware | None = None

    def run(self, warn: Callable[[str], None]) -> int:
        """Trains to the end; returns the exit status in the convention of shells.

        Args:
            warn: Shows a warning about a process that the recorder cannot enter.

        Raises:
            UsageError: The script cannot be started.
        """
        places = {"socket": str(self._folder / "live"), "shared": str(self._folder)}
        orders = {"role": "train", **places, "allowed": self._allowed, "reads": READS}
        environment = self._script.environment(orders, os.environ)
        listening = threading.Thread(target=self._listen, daemon=True)
        listening.start()
        try:
            status = Training(self._script, environment, self._folder, warn).run()
        finally:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            listening.join(LAST_SECONDS)
            self._listener.close()
        self._guarded(self._conclude, status)
        self._guarded(self.log.add, {"event": "exited", "status": status})
        return status

    def _listen(self) -> None:
        """Reads what the processes report, until the last one has closed its connection."""
        readers = []
        with contextlib.suppress(OSError):
            while True:
                channel, _ = self._listener.accept()
                readers.append(threading.Thread(target=self._read, args=(channel,), daemon=True))
                readers[-1].start()
        for reader in readers:
            reader.join()

    def _read(self, channel: socket.socket) -> None:
        """Reads the events of one process; after a failure the connection is closed, and the training goes on."""
        with contextlib.suppress(OSError), channel, channel.makefile("rb") as lines:
            for event in events_in(lines):
                if not self._guarded(self._hear, channel, event):
                    return

    def _guarded(self, what: Callable[..., object], *arguments: Any) -> bool:
        """Calls a function and returns whether it succeeded. A failure is reported, but does not end the training."""
        with self._lock:
            try:
                what(*arguments)
            except Exception as error:  # noqa: BLE001 - training goes on after any error
                self._say(f"tuning has failed, training goes on ({type(error).__name__}: {error})")
                return False
        return True

    def _hear(self, channel: socket.socket, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "seen":
            seen = SeenScript.of(event["value"], processes=1)
            self._seen[event["value"]["pid"]] = seen, record_of(self._script.command, seen)
        elif kind == "unseen":
            self._why_unseen = event["reason"]
        elif kind == "over" and self._tuned is None:
            self._why_untuned = f"nothing was tuned: {event['why']}"
        elif kind == "began" and self._tuned is None:
            self._tuned = channel, event["pid"]
            self._begin(channel, event)
        elif kind == "began":
            _offer(channel, [])
            if not self._is_told_of_others:
                self._say("several processes train: autotune tunes the first one, and the others keep your settings")
            self._is_told_of_others = True
        elif self._tuned is not None and channel is self._tuned[0]:
            self.log.add(event)

    def _probe(self) -> Hardware:
        self._hardware = probe_host()
        return self._hardware

    def _begin(self, channel: socket.socket, event: dict[str, Any]) -> None:
        """Sends candidates to the first process that trains."""
        facts = LiveFacts.model_validate(event)
        hardware = self._hardware or self._probe()
        name = f"{stem_of(self._script.place)}-{facts.device}-live"
        own = Path("results") / hardware.slug / f"{name}.json"
        if not self.log.open(self._out or own, self._script.text):
            own = own.with_stem(f"{name}-{event['pid']}")  # several trainings of one script at once
            if self._out is None:
                self.log.open(own, self._script.text)
        self._out = self._out or own
        _offer(channel, self.log.begin(event, hardware))

    def _conclude(self, status: int) -> None:
        """Writes the result after the script has ended."""
        if self._out is None or self._hardware is None or self._tuned is None:
            self._say(self._why_untuned or self._why_nothing(status))
            return
        if (description := self._seen.get(self._tuned[1])) is not None:
            decided = any(candidate.verdict is not None for candidate in self.log.story.candidates.values())
            if self._out.exists() and not decided:
                what = "training" if self.log.story.over is None else "search"
                self._say(f"{self._out} stays as it is: this time the {what} ended before anything was decided")
                return
            result = live_result(self.log.story, self._script, self._hardware, *description)
            place = self._out
            if result.status == "partial":
                proves = result.speedup is not None
                place = place_of_partial(place, proves=proves)
                if place != self._out and place_of_partial(place, proves=proves) != place:
                    self._say(f"{self._out} and {place} stay as they are: they hold more than this training has shown")
                    return
            if place != self._out:
                self._say(f"{self._out} stays as it is")
            self.log.say_ended(str(result.speedup_reason))
            path, failure = keep_document(result, place)
            if failure is not None:
                self._say(str(failure))
            if path is not None:
                self.log.add({"event": "written", "path": str(path)})
                code, sentences = what_next(result, path)
                if self.log.story.given_up is not None:
                    sentences = [f"train as before: {self.log.story.given_up}"]
                self._say("; ".join([f"result file: {path}", *[f"next time: {code}"] * bool(code), *sentences]))
        else:
            self._say(f"no result is written: {self._why_unseen}")

    def _why_nothing(self, status: int) -> str:
        if status:
            return f"the script ended (status {status}) before anything was tuned"
        look = f"autotune run --dry-run -- {self._script.text}"
        return f"no training loop was seen, so nothing was tuned; see what is seen: {look}"


def _offer(channel: socket.socket, words: list[dict[str, Any]]) -> None:
    with contextlib.suppress(OSError):  # the process has ended meanwhile
        channel.sendall(json.dumps({"candidates": words}).encode() + b"\n")


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
    facts, trials = facts_of(seen, script), tuple(_trials(story))
    early: Literal["interrupted", "end of training"] = "end of training" if story.over is None else "interrupted"
    machine, device = as_trained(hardware, seen, None)
    speedup = _speedup(story)
    waiting, allowed = (story.facts.wait_share, story.facts.allowed) if story.facts is not None else (None, ())
    return Result(
        status="complete" if story.is_complete else "partial",
        created=datetime.now(timezone.utc),
        workload=WorkloadRecord.of(facts, {}, record),
        hardware=machine,
        software=machine.software.model_copy(update={"autotune": __version__}),
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
        stopped_by="exhausted" if story.is_complete else early,
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
    candidates = story.candidates.values()
    measured = {one.name: one.ratio for one in candidates if one.ratio and one.pairs and one.verdict != "failed"}
    if story.given_up is not None and story.over is not None:
        return f"{story.given_up}: {story.over.why}"
    if not story.offered:
        return "there was nothing to try while it trained"
    rest = "" if story.is_complete else f" ({story.progress})"
    if not measured and (out := [one for one in candidates if one.reason]):
        return f"{out[-1].name} is left out{rest}: {out[-1].reason}"
    if not measured:
        return f"no pair of blocks was measured{rest}"
    best = story.candidates[max(measured, key=lambda name: measured[name])]
    spread = f" ({ratios(best.interval)})" if best.interval is not None else ""
    reached = f"{best.name} reached {ratio_text(measured[best.name])}{spread}"
    if best.interval is not None and best.interval.low > 1 and (best.verdict is None or best.reason):
        pairs = f"{best.pairs} pair{'s' if best.pairs > 1 else ''} of blocks"
        why = f" in {pairs}, too few to decide" if best.verdict is None else f", but is left out: {best.reason}"
        return f"no setting is known to be faster{rest}: {reached}{why}"
    return f"no setting was clearly faster{rest}: {reached}"


def _trials(story: Story) -> Iterator[TrialRecord]:
    """A record per candidate, each compared with the winners before it."""
    held: Knobs = {}
    for one in story.candidates.values():
        ending = _ENDINGS.get(one.verdict or "", Outcome.OK)
        ending_words = f"it {one.verdict}" if one.verdict else "the search ended before it was decided"
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
    moves = moving(story.facts) if story.facts is not None else None
    if moves and any(one.seconds and one.knobs.get("num_workers") for one in story.candidates.values()):
        yield moves
