"""The half hour on a GPU: what is measured once stays, what ends early leaves a file, and the pages show it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.doctor.findings import TEN, Examination
from autotune.measuring.records import Outcome
from autotune.results.result import TrialRecord
from benchmarks import gpu_half_hour as half_hour
from docs._scripts import verified
from tests.factories import make_result
from tests.spaces import cpu_machine, gpu_machine

Answer = half_hour.Answer


class Points:
    """Ten points that note when they are measured; one of them ends as it is asked to.

    Attributes:
        ends: By number, what a point raises or answers; all others hold.
        measured: Numbers, in order.
    """

    def __init__(self, **ends: BaseException | Answer) -> None:
        self.ends = {int(number.removeprefix("n")): end for number, end in ends.items()}
        self.measured: list[int] = []

    def steps(self) -> tuple[tuple[str, Any], ...]:
        """What replaces `STEPS`."""
        return tuple(("goal", lambda _, n=number: self.measure(n)) for number in range(1, len(TEN) + 1))

    def measure(self, number: int) -> Answer:
        """Measures one."""
        self.measured.append(number)
        end = self.ends.get(number, (True, "1.00×"))
        if isinstance(end, BaseException):
            raise end
        return end


def run(monkeypatch: pytest.MonkeyPatch, points: Points, out: Path, *words: str) -> tuple[int, Examination]:
    """The command with some points: its exit status and its file."""
    monkeypatch.setattr(half_hour, "STEPS", points.steps())
    monkeypatch.setattr(half_hour, "look", cpu_machine)
    status = half_hour.main(["--out", str(out), *words])
    return status, Examination.model_validate_json(out.read_bytes())


def test_an_interruption_leaves_a_file_and_the_same_command_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is in the file is not measured again, unless it was not there or is asked for."""
    out = tmp_path / "half-hour-cpu.json"
    status, kept = run(monkeypatch, Points(n2=(None, "needs a GPU"), n4=KeyboardInterrupt()), out)
    assert (status, [finding.point for finding in kept.findings]) == (130, [1, 2, 3])
    again = Points()
    status, kept = run(monkeypatch, again, out)
    assert (status, again.measured, set(kept.ten)) == (0, [2, *range(4, 11)], {"ok"})
    once_more = Points(n3=(False, "0.5×"))
    status, kept = run(monkeypatch, once_more, out, "--only", "3")
    assert (status, once_more.measured, kept.ten[2]) == (1, [3], "does not hold")


def test_a_point_that_fails_is_a_row_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its error, in the table that is printed."""
    status, kept = run(monkeypatch, Points(n1=RuntimeError("no | room")), tmp_path / "try.json")
    assert (status, kept.ten.count("ok")) == (1, 9)
    assert f"| 1 | {TEN[0]} | does not hold: RuntimeError: no / room | goal |" in capsys.readouterr().out


def trials(*changes: dict[str, Any]) -> Any:
    """A result whose search has tried these."""
    made = [
        TrialRecord(stage="gain", reason="", changes=one, outcome=Outcome.OK, seconds=1.0) for one in [*changes] * 2
    ]
    proof = TrialRecord(stage="confirm", reason="", changes={"num_workers": 9}, outcome=Outcome.OK, seconds=1.0)
    return make_result(trials=(*made, proof))


@pytest.mark.parametrize(
    ("place", "holds", "words"),
    [
        (5, True, "25 candidates; 48 × 1 is number 5"),
        (6, False, "48 × 1 is number 6"),
        (None, False, "48 × 1 was not tried"),
    ],
)
def test_one_micro_batch_must_be_tried_early(
    monkeypatch: pytest.MonkeyPatch, place: int | None, holds: bool, words: str
) -> None:
    """Each candidate counts once, and those of the proof do not."""
    changes: list[dict[str, Any]] = [{"num_workers": number} for number in range(1, 26)]
    if place is not None:
        changes[place - 1] = {"batch_size": 48, "accumulation_steps": 1}
    monkeypatch.setattr(half_hour, "tuned", lambda *_: trials(*changes))
    setting = half_hour.Setting(clinic=None, share=1.0, folder=Path(), sources=None)  # type: ignore[arg-type]
    met, text = half_hour.transformer(setting)
    assert (met, words in text) == (holds, True)


def test_a_verified_card_is_on_both_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its machine, how many points hold, and each point's figure."""
    monkeypatch.setattr(verified, "RESULTS", tmp_path)
    machine = gpu_machine()
    findings = [
        half_hour.Finding.of(name, holds=number != 4, found=f"figure {number}", remedy="").model_copy(
            update={"point": number}
        )
        for number, name in enumerate(TEN, 1)
    ]
    half_hour.examination_of(machine, "cuda", findings, 1800.0).write(tmp_path / "rtx" / "half-hour-cuda.json")
    name, torch = machine.machine("cuda"), machine.software.torch
    assert f"| {name} | cuda | {torch} | 9 of 10 hold | none |" in verified.text()
    assert f"| 4. {TEN[3]} | **no** |" in verified.text()
    assert f"| {name}, torch {torch} | 9 of 10 hold | figure 7 | figure 8 | figure 9 |" in verified.cards()
    assert "does not hold: figure 4" in verified.half_hours()


def test_what_git_does_not_know_is_on_no_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A tuning in a checkout leaves its pages as they are, until its result is added."""
    monkeypatch.setattr(verified, "RESULTS", tmp_path)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    half_hour.examination_of(cpu_machine(), "cpu", [], 1.0).write(tmp_path / "mine" / "doctor-cpu.json")
    assert not list(verified._examinations())
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    assert len(list(verified._examinations())) == 1
