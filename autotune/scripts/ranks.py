"""The ranks of a script, seen from their parent: their events are merged into those of one process."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.bursts.hosts.endings import RankFailure, cause_among
from autotune.bursts.jobs.rank_launcher import LOOPBACK
from autotune.measuring import Outcome

TORCHS_PORT = 29500
_PORTS = ("--master-port", "--master_port", "--main-process-port", "--main_process_port")
_ENDPOINTS = ("--rdzv-endpoint", "--rdzv_endpoint")
_LAST = ("done", "result", "trained")
"""Each of these ends the events of a rank."""
_OF_TORCHRUN = "PET_MASTER_PORT"
"""The variable from which `torchrun` takes its port if the command has none."""


class Together:
    """Merges the events of several ranks into one job: each rank sends the same events in the same order.

    A block takes as long as its slowest rank, and host memory adds up; other values come from the first rank.

    Args:
        ranks: The number of each rank, by sender; grows as ranks connect.
        count: How many ranks there are.

    Attributes:
        pids: The ids of their processes, as far as they are known.
    """

    def __init__(self, ranks: Mapping[int, int], count: int) -> None:
        self.pids: list[int] = []
        self._ranks = ranks
        self._count = count
        self._events: dict[str, dict[int, dict[str, Any]]] = {}
        self._failures: list[RankFailure] = []  # by sender
        self._has_ended, self._is_reported = False, False

    @property
    def has_failed(self) -> bool:
        """Whether a rank has failed, or has gone before it sent its result."""
        return bool(self._failures)

    def add_event(self, sender: int, event: dict[str, Any]) -> list[dict[str, Any]]:
        """Takes an event of a rank; returns the merged events, which are empty until all ranks have sent theirs."""
        kind = event["event"]
        if kind in {"joined", "started", "serves"}:
            self.pids.append(event["pid"])
        if kind == "failure":
            self._failures.append(RankFailure(sender, event, is_silent=False))
            return []
        if kind == "phase":  # ranks do not wait for each other there
            return [event] if self._ranks.get(sender) == 0 else []
        if kind == "exit":
            self.note_disconnect(sender)
        events = self._events.setdefault(kind, {})
        events[sender] = event
        if len(events) < self._count:
            return []
        del self._events[kind]
        self._has_ended |= kind in _LAST
        in_order = [events[each] for each in sorted(events, key=lambda each: self._ranks.get(each, each))]
        merged = _MERGED.get(kind, _first)(in_order)
        return [*self.outcome(), merged] if kind == "exit" else [merged]

    def note_disconnect(self, sender: int) -> None:
        """Records that a rank has disconnected. Before its last event or a failure, it counts as lost."""
        has_ended = self._has_ended or any(sender in self._events.get(kind, ()) for kind in _LAST)
        if not has_ended and all(failure.rank != sender for failure in self._failures):
            reason = "the process ended without a report, as a killed one does"
            event = {"event": "failure", "outcome": Outcome.CRASHED.value, "reason": reason}
            self._failures.append(RankFailure(sender, event, is_silent=True))

    def outcome(self) -> list[dict[str, Any]]:
        """The cause of a failed job, as far as it can be known; empty without a failure, or after the first call."""
        if self._is_reported or not self.has_failed:
            return []
        self._is_reported = True
        failures = [one._replace(rank=self._ranks.get(one.rank, one.rank)) for one in self._failures]
        return [cause_among(failures, self._count)]


def _first(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return events[0]


def _ready(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    longest = ("pace", "start_seconds", "opening_seconds", "loader_seconds")
    return {**events[0], **{name: max(event[name] for event in events) for name in longest}}


def _block(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    laps = [event["lap"] for event in events]
    left_out = max(lap["left_out"] for lap in laps)  # others wait for a rank that evaluates
    slowest = max(events, key=lambda event: event["lap"]["seconds"] + event["lap"]["left_out"])
    samples = round(sum(lap["samples"] for lap in laps) / len(laps))  # each rank counts the samples of all
    lap = {
        **slowest["lap"],
        "seconds": max(1e-9, slowest["lap"]["seconds"] + slowest["lap"]["left_out"] - left_out),
        "samples": samples,
        "consumed": max(1, samples),
        "compiled": any(lap["compiled"] for lap in laps),
    }
    return {**slowest, "lap": lap, "drained": all(event["drained"] for event in events)}


def _figures(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    value = dict(events[0]["value"])
    host = [event["value"].get("host_memory_bytes") for event in events]
    if "host_memory_bytes" in value:
        value["host_memory_bytes"] = None if None in host else sum(host)
    for name in ("device_memory_bytes", "device_allocated_bytes"):
        if name in value:
            value[name] = max(event["value"][name] for event in events)
    return {**events[0], "value": value}


def _report(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {**_figures(events), "drained": all(event["drained"] for event in events)}


def _begun(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {**events[0], "pids": [event["pid"] for event in events]}


def _serves(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    reason = next(filter(None, (event["fork_unsafe_reason"] for event in events)), None)
    return {**_begun(events), "fork_unsafe_reason": reason}


def _exit(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return next((event for event in events if event["status"]), events[0])


_MERGED = {
    "ready": _ready, "block": _block, "report": _report, "result": _figures,
    "serves": _serves, "started": _begun, "exit": _exit,
}  # fmt: skip


def free_port() -> int:
    """A free port; torch's default if there is no loopback, without which ranks cannot meet either."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            return int(server.getsockname()[1])
    except OSError:
        return TORCHS_PORT


def on_port(command: Sequence[str], variables: dict[str, str], port: int) -> tuple[list[str], dict[str, str]]:
    """A command and its environment with a port of its own for its ranks, so that two runs of it can coexist."""
    words = list(command)
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option not in {*_PORTS, *_ENDPOINTS}:
            continue
        at = place if equals else place + 1
        if at == len(words):
            continue
        value = value if equals else words[at]
        changed = str(port) if option in _PORTS else f"{value.rpartition(':')[0] or value}:{port}"
        words[at] = f"{option}={changed}" if equals else changed
    return words, {**variables, _OF_TORCHRUN: str(port)}
