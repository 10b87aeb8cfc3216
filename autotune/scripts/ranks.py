"""The ranks of a script, seen from their parent: what all of them tell becomes what one process would."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.bursts.endings import lost_another
from autotune.bursts.launcher import LOOPBACK
from autotune.measuring import Outcome

TORCHS_PORT = 29500
_PORTS = ("--master-port", "--master_port", "--main-process-port", "--main_process_port")
_ENDPOINTS = ("--rdzv-endpoint", "--rdzv_endpoint")
_LAST = ("done", "result", "trained")
"""What a rank tells last."""
_OF_TORCHRUN = "PET_MASTER_PORT"
"""Where `torchrun` looks for its port, if its command says none."""


class Together:
    """Makes one job of several ranks: each tells the same things in the same order.

    A block takes as long as its slowest rank does; memory of the host adds up; what else is told, the first one tells.
    One that fails takes the others with it, which then fail of their connections: the cause is told.

    Args:
        ranks: The number of each, by who tells it; grows as they come.
        count: How many there are.

    Attributes:
        pids: Their processes, as far as they are known.
    """

    def __init__(self, ranks: Mapping[int, int], count: int) -> None:
        self.pids: list[int] = []
        self._ranks = ranks
        self._count = count
        self._told: dict[str, dict[int, dict[str, Any]]] = {}
        self._failures: list[tuple[int, dict[str, Any]]] = []
        self._silent: list[int] = []
        self._has_ended, self._is_told = False, False

    @property
    def has_failed(self) -> bool:
        """Whether one of them has failed, or gone before it had told its result."""
        return bool(self._failures or self._silent)

    def heard(self, teller: int, event: dict[str, Any]) -> list[dict[str, Any]]:
        """What an event amounts to: nothing, before all have told theirs.

        Args:
            teller: Who tells it.
            event: The event.
        """
        kind = event["event"]
        if kind in {"joined", "started", "serves"}:
            self.pids.append(event["pid"])
        if kind == "failure":
            self._failures.append((teller, event))
            return []
        if kind == "phase":  # none waits for the others there
            return [event] if self._ranks.get(teller) == 0 else []
        if kind == "exit":
            self.left(teller)
        told = self._told.setdefault(kind, {})
        told[teller] = event
        if len(told) < self._count:
            return []
        del self._told[kind]
        self._has_ended |= kind in _LAST
        in_order = [told[one] for one in sorted(told, key=lambda one: self._ranks.get(one, one))]
        merged = _MERGED.get(kind, _first)(in_order)
        return [*self.outcome(), merged] if kind == "exit" else [merged]

    def left(self, teller: int) -> None:
        """Takes in that a rank tells no more: unless all was told, it went without a word."""
        has_ended = self._has_ended or any(teller in self._told.get(kind, ()) for kind in _LAST)
        if not has_ended and all(one != teller for one, _ in self._failures):
            self._silent.append(teller)

    def outcome(self) -> list[dict[str, Any]]:
        """Why the job failed, if it did and nobody was told: what began it, as far as that can be known."""
        if self._is_told or not self.has_failed:
            return []
        self._is_told = True
        own = [(teller, event) for teller, event in self._failures if not lost_another(event)]
        if own or not self._silent:
            teller, event = (own or self._failures)[0]
            return [{**event, "reason": f"{self._named(teller)}: {event['reason']}"}]
        reason = f"{self._named(self._silent[0])}: the process ended without a word, as one that is killed does"
        return [{"event": "failure", "outcome": Outcome.CRASHED.value, "reason": reason}]

    def _named(self, teller: int) -> str:
        return f"on rank {self._ranks.get(teller, teller)} of {self._count}"


def _first(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return events[0]


def _ready(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    longest = ("pace", "start_seconds", "opening_seconds", "loader_seconds")
    return {**events[0], **{name: max(event[name] for event in events) for name in longest}}


def _block(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    laps = [event["lap"] for event in events]
    left_out = max(lap["left_out"] for lap in laps)  # others wait for a rank that evaluates
    slowest = max(events, key=lambda event: event["lap"]["seconds"] + event["lap"]["left_out"])
    samples = round(sum(lap["samples"] for lap in laps) / len(laps))  # each counts those of all
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
    """A port at which nobody listens; torch's own where there is no loopback, so that no ranks could meet either."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            return int(server.getsockname()[1])
    except OSError:
        return TORCHS_PORT


def on_port(command: Sequence[str], variables: dict[str, str], port: int) -> tuple[list[str], dict[str, str]]:
    """A command and its environment, whose launcher's ranks meet at a port of their own: two runs of it may live.

    Args:
        command: As it was typed.
        variables: Of its environment.
        port: A free one.
    """
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
