"""The parent of a training that is tuned while it runs: it plans candidates, keeps the log, and writes the result.

All decisions are made in the training process. Whatever happens here, the training goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.bursts.child import events_in
from autotune.files import stem_of
from autotune.hardware import Hardware, probe_host
from autotune.knobs import Candidates, LiveFacts, TrainConfig, format_scalar, live_candidates
from autotune.results.files import keep_document
from autotune.results.live import Candidate, Over, Story, log_path
from autotune.results.result import ScriptRecord
from autotune.results.summary import ratios
from autotune.scripts.changes import changes_of
from autotune.scripts.facts import loop_of, source_of
from autotune.scripts.live_result import live_result
from autotune.scripts.script import Script
from autotune.scripts.seen import SeenScript
from autotune.scripts.training import Training
from autotune.secrets import masked_data
from autotune.units import format_seconds
from autotune.wording import ratio_text

LAST_SECONDS = 2.0
"""In which the last that a script has told is read, once it has ended. Not tuned: reading it takes milliseconds."""
SEVERAL = "several processes train: each keeps your own settings, since only one can be tuned while it trains"


class Live:
    """A training that is tuned while it runs.

    Args:
        script: The command.
        out: The result file; None: by the script's name in ``results/<machine>``.
        folder: Of the run, for the socket and the recorder's word.
        say: Shows a sentence to the person.
    """

    def __init__(self, script: Script, out: Path | None, folder: Path, say: Callable[[str], None]) -> None:
        self.story = Story()
        self._script, self._out, self._folder, self._say = script, out, folder, say
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(folder / "live"))
        self._listener.listen()
        self._lock = threading.Lock()
        self._early: dict[socket.socket, list[dict[str, Any]]] = {}  # that a process told before it began
        self._teller: socket.socket | None = None
        self._seen: dict[socket.socket, tuple[SeenScript, ScriptRecord]] = {}
        self._log: Any = None
        self._hardware: Hardware | None = None
        self._told_of_several = False

    def run(self, warn: Callable[[str], None]) -> int:
        """Trains to the end; returns the exit status in the convention of shells.

        Args:
            warn: Told of processes that the recorder cannot come into.
        """
        orders = {"role": "train", "socket": str(self._folder / "live"), "shared": str(self._folder)}
        environment = self._script.environment({**orders, "steps": None, "seconds": None}, os.environ)
        listening = threading.Thread(target=self._listen, daemon=True)
        listening.start()
        status = Training(self._script, environment, self._folder, warn, outlives=True).run()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        listening.join(LAST_SECONDS)
        self._listener.close()
        with self._lock:
            self._guarded(lambda: self._conclude(status))
        return status

    def _listen(self) -> None:
        """Reads what all processes tell, until nobody is left who might tell anything."""
        self._guarded(lambda: setattr(self, "_hardware", probe_host()))
        readers = []
        with contextlib.suppress(OSError):
            while True:
                channel, _ = self._listener.accept()
                reader = threading.Thread(target=self._read, args=(channel,), daemon=True)
                reader.start()
                readers.append(reader)
        for reader in readers:
            reader.join()

    def _read(self, channel: socket.socket) -> None:
        with contextlib.suppress(OSError), channel, channel.makefile("rb") as lines:
            for event in events_in(lines):
                with self._lock:
                    if not self._guarded(lambda event=event: self._hear(channel, event)):  # type: ignore[misc]
                        return

    def _guarded(self, what: Callable[[], object]) -> bool:
        """Does something, and returns whether it went well; else says why not, for the training is not to blame."""
        try:
            what()
        except Exception as error:  # noqa: BLE001 - of whatever kind: training goes on
            self._say(f"tuning has failed, training goes on ({type(error).__name__}: {error})")
            return False
        return True

    def _hear(self, channel: socket.socket, event: dict[str, Any]) -> None:
        if event["event"] == "seen":
            seen = SeenScript.of(event["value"], processes=1)
            record = ScriptRecord(command=self._script.command, loop=loop_of(seen), source=source_of(seen))
            self._seen[channel] = seen, record
        if event["event"] == "began":
            self._begin(channel, LiveFacts.model_validate(event))
        if channel is not self._teller:
            self._early.setdefault(channel, []).append(event)
            return
        self._note(event)
        if event["event"] == "decided" and (one := self.story.candidates[event["name"]]).verdict == "won":
            self._say(f"{one.name} is faster: {_figure(one)}")
        if event["event"] == "over" and self.story.over is not None:
            self._say(self._last_line(self.story.over))

    def _begin(self, channel: socket.socket, facts: LiveFacts) -> None:
        """A process trains: the first one is offered candidates."""
        several = self._teller is not None or facts.ranks > 1
        if several and not self._told_of_several:
            self._told_of_several = True
            self._say(SEVERAL)
        if self._teller is not None:
            _offer(channel, [])
            return
        self._teller = channel
        hardware = self._hardware or probe_host()
        name = f"{stem_of(self._script.place)}-{facts.device}-live.json"
        self._out = self._out or Path("results") / hardware.slug / name
        self._open_log(log_path(self._out))
        for early in self._early.pop(channel, []):
            self._note(early)
        plan = Candidates(facts.baseline, (), {}) if several else live_candidates(facts, hardware)
        words = [in_words(config, plan.baseline) for config in plan.configs]
        self._note({"event": "planned", "candidates": {one["name"]: one["knobs"] for one in words}, "left": plan.left})
        _offer(channel, words)
        self._say_plan(words, plan.left)

    def _open_log(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._log = path.open("wb", buffering=0)
        except OSError as error:
            self._say(f"{path} cannot be written, so that there is no log: {error.strerror}")
        command, process = self._script.text, os.getpid()
        self._note({"event": "started", "command": command, "host": platform.node(), "pid": process})

    def _note(self, event: Mapping[str, Any]) -> None:
        """Takes an event into the story and the log; a log that cannot be written any more is given up."""
        self.story.add(event)
        if self._log is not None:
            try:
                self._log.write(json.dumps(masked_data(event), default=str).encode() + b"\n")
            except OSError as error:
                self._say(f"the log is given up, training goes on: {error.strerror}")
                self._log = None

    def _say_plan(self, words: list[dict[str, Any]], left: Mapping[str, str]) -> None:
        knobs = dict.fromkeys(knob for one in words for knob in one["knobs"])
        if words:
            watch = "" if self._log is None else f"; follow it with 'autotune watch {self._log.name}'"
            self._say(f"{len(words)} settings of {', '.join(knobs)} are tried while it trains{watch}")
        by_reason: dict[str, list[str]] = {}
        for knob, why in left.items():
            by_reason.setdefault(why, []).append(knob)
        for why, kept in by_reason.items():
            self._say(f"your own {', '.join(kept)} stay{'s' * (len(kept) == 1)}: {why}")

    def _last_line(self, over: Over) -> str:
        """What has won, what it gains, what the search has cost, and when that is paid."""
        cost, gained = format_seconds(over.cost_seconds), self.story.gained
        elsewhere = "what needs a new process, such as the allocator, is tried by 'autotune run'"
        if not over.won or gained is None:
            return f"no setting is faster than your own ({over.why}); the search has cost {cost}; {elsewhere}"
        won = ", ".join(f"{knob}={format_scalar(value)}" for knob, value in over.won.items())
        missing = over.cost_seconds - over.saved_seconds
        paid = f"has paid for itself: it has saved {format_seconds(over.saved_seconds)}"
        if not over.paid:
            paid = f"has paid for itself in {format_seconds(missing / max(1e-9, over.gained - 1))} of training"
        return (
            f"{won}: {ratio_text(gained[0])} ({ratios(gained[1])}); the search has cost {cost} and {paid}; {elsewhere}"
        )

    def _conclude(self, status: int) -> None:
        """Writes what is known once the script has ended."""
        if self._teller is None or self._out is None:
            self._say("no training loop was seen, so that nothing was tuned")
            return
        seen = self._seen.get(self._teller)
        if seen is None or self._hardware is None:
            self._say("no result is written: the script has ended before enough of its training was seen")
        else:
            result = live_result(self.story, self._script, self._hardware, *seen)
            path, failure = keep_document(result, self._out)
            if failure is not None:
                self._say(str(failure))
            if path is not None:
                self._note({"event": "written", "path": str(path)})
                self._say(f"result file: {path}; train with it: autotune launch {path} -- {self._script.text}")
        self._note({"event": "exited", "status": status})


def in_words(config: TrainConfig, baseline: TrainConfig) -> dict[str, Any]:
    """A candidate as the recorder plays it."""
    changes = changes_of(config, baseline)
    knobs = {knob: now for knob, (_, now) in config.changes_from(baseline).items()}
    name = ", ".join(f"{knob}={format_scalar(value)}" for knob, value in knobs.items())
    return {"name": name, "knobs": knobs, **{what: changes[what] for what in ("loader", "process", "optimizer")}}


def _offer(channel: socket.socket, words: list[dict[str, Any]]) -> None:
    with contextlib.suppress(OSError):  # the process has ended meanwhile
        channel.sendall(json.dumps({"candidates": words}).encode() + b"\n")


def _figure(one: Candidate) -> str:
    spread = f"{ratios(one.interval)}, " if one.interval is not None else ""
    return f"{ratio_text(one.ratio or 1.0)} ({spread}{one.pairs} pairs of blocks)"
