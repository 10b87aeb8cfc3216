"""A campaign on an engine whose machines do what a test says: retries, partial fleets, interruptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from autotune.fleet import Campaign, Job, MachineKind
from autotune.fleet.campaign import Ending
from autotune.fleet.job import Reply

KINDS = {"a": MachineKind(), "b": MachineKind()}


def home(machine: str, result: str | None = "found", status: int | None = 0, log: str = "") -> Ending:
    """A job that ended by itself."""
    return Ending(machine, "done", Reply(status, result, log))


@dataclass
class Scripted:
    """An engine that answers each job of a machine with the next of its endings."""

    endings_of: dict[str, list[Ending]]
    sent: list[str] = field(default_factory=list)
    cancelled: bool = False
    _ended: list[Ending] = field(default_factory=list)

    def start(self, job: Job, kind: MachineKind) -> None:
        self.sent.append(job.machine)
        if self.endings_of[job.machine]:
            self._ended.append(self.endings_of[job.machine].pop(0))

    def endings(self, seconds: float) -> Sequence[Ending]:
        ended, self._ended = self._ended, []
        return ended

    def cancel(self) -> None:
        self.cancelled = True
        self._ended += [home(machine, "partial") for machine in self.endings_of]

    def close(self) -> None:
        """Nothing runs."""


def campaign(engine: Scripted, kept: dict[str, str] | None = None, *, ends: bool = False) -> Campaign:
    """A campaign that keeps results in a dict."""
    known = {} if kept is None else kept

    def keep(machine: str, text: str) -> str:
        if text == "broken":
            raise ValueError("the file is broken")
        known[machine] = text
        return f"kept {text}"

    return Campaign(engine, KINDS, keep, asked_to_end=lambda: ends)


def job(machine: str) -> Job:
    """Any job."""
    return Job(machine, ("--version",), 1.0)


def test_what_comes_home_is_kept_at_once_in_the_order_of_the_file() -> None:
    """All machines work at once, and the answer reads as the file does."""
    kept: dict[str, str] = {}
    endings = campaign(Scripted({"a": [home("a")], "b": [home("b", "other")]}), kept).run(job)
    assert [(ending.machine, ending.fate, ending.message) for ending in endings] == [
        ("a", "done", "kept found"),
        ("b", "done", "kept other"),
    ]
    assert kept == {"a": "found", "b": "other"}


def test_a_lost_machine_is_tried_once_more() -> None:
    """A node that went down may have been bad luck, and the second one knows what the others found."""
    engine = Scripted({"a": [home("a")], "b": [Ending("b", "lost", message="the node died"), home("b")]})
    endings = campaign(engine).run(job)
    assert engine.sent == ["a", "b", "b"]
    assert endings[1].fate == "done"


def test_a_machine_that_is_lost_again_is_told_and_the_others_count() -> None:
    """A partial fleet is a result."""
    lost = [Ending("b", "lost", message="the node died")] * 2
    endings = campaign(Scripted({"a": [home("a")], "b": lost})).run(job)
    assert [ending.fate for ending in endings] == ["done", "lost"]
    assert endings[1].message == "the node died"


def test_an_absent_machine_is_not_tried_again() -> None:
    """No second try makes a label appear."""
    engine = Scripted({"a": [home("a")], "b": [Ending("b", "absent", message="no node has it")]})
    assert campaign(engine).run(job)[1].message == "no node has it"
    assert engine.sent == ["a", "b"]


def test_a_command_that_failed_tells_its_own_error() -> None:
    """What it printed after "error:" is the reason, wherever the terminal broke the line."""
    log = "Traceback …\nerror: the target x:build cannot be\nimported; check it\n"
    ending = campaign(Scripted({"a": [home("a", None, 2, log)], "b": [home("b")]})).run(job)[0]
    assert (ending.fate, ending.message) == ("failed", "the target x:build cannot be imported; check it")
    assert ending.log == log


def test_a_command_that_hung_or_brought_rubbish_is_told() -> None:
    """Neither is a result."""
    engine = Scripted({"a": [home("a", None, None, "compiling")], "b": [home("b", "broken")]})
    hung, broken = campaign(engine).run(job)
    assert hung.message == "it hung, and was killed; it printed last: compiling"
    assert (broken.fate, "the file is broken" in broken.message) == ("failed", True)


PARTIAL = Ending("b", "lost", Reply(130, "partial", ""), "it was interrupted")


@pytest.mark.parametrize(
    ("second", "kept", "ended"),
    [
        (home("b"), "found", ("done", "kept found")),
        (replace(PARTIAL, reply=Reply(130, "longer", "")), "longer", ("lost", "kept longer; it was interrupted")),
        (
            Ending("b", "lost", Reply(130, None, ""), "it was interrupted"),
            "partial",
            ("lost", "kept partial; it was interrupted"),
        ),
        (Ending("b", "absent", message="no node has it"), "partial", ("absent", "kept partial; no node has it")),
        (home("b", None, 1, "error: it broke"), "partial", ("failed", "kept partial; it broke")),
    ],
)
def test_a_preempted_job_is_sent_again_and_its_partial_result_kept_if_that_fails(
    second: Ending, kept: str, ended: tuple[str, str]
) -> None:
    """A partial result counts as missing, though its message names the file."""
    found: dict[str, str] = {}
    engine = Scripted({"a": [home("a")], "b": [PARTIAL, second]})
    ending = campaign(engine, found).run(job)[1]
    assert engine.sent == ["a", "b", "b"]
    assert (found["b"], (ending.fate, ending.message)) == (kept, ended)
    assert ending.fate == "done" or "partial" in ending.outcome


def test_a_job_that_the_user_interrupts_is_not_sent_again() -> None:
    """Though the engine cannot tell that from a preemption."""
    engine = Scripted({"a": [home("a")], "b": [PARTIAL]})
    ending = campaign(engine, ends=True).run(job)[1]
    assert engine.sent == ["a", "b"]
    assert (ending.fate, ending.message) == ("done", "kept partial")


def test_an_interruption_brings_home_what_there_is() -> None:
    """The first Ctrl-C cancels, and partial results are kept."""
    kept: dict[str, str] = {}
    engine = Scripted({"a": [], "b": []})
    endings = campaign(engine, kept, ends=True).run(job)
    assert engine.cancelled
    assert kept == {"a": "partial", "b": "partial"}
    assert [ending.fate for ending in endings] == ["done", "done"]
