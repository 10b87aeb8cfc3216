"""Rates of trainings with a result: lines of JSON beside its file, which the recorder appends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import AwareDatetime, Field, ValidationError

from autotune.hardware.host import read_cpu
from autotune.measuring import Measurement
from autotune.results.files import MOST_BYTES
from autotune.results.result import Result
from autotune.stored import Figure, Seconds, Stored, Whole
from autotune.units import format_bytes, format_seconds
from autotune.wording import percent

if TYPE_CHECKING:
    from autotune.recorder.realised import Order

SHORT = 0.9
"""Training below this share of the claimed rate falls short."""
SHORT_SECONDS = 120.0
"""A shortfall is reported when its notes cover this many seconds in all. Not tuned."""
EXPLAINED = 0.5
"""A change is reported as the cause when it explains this share of the shortfall. Not tuned."""
GROWN = 1.1
"""Memory counts as changed from this multiple of the measured one on. Not tuned."""
MOST_SHOWN = 5
"""The last trainings, whose ratios are printed."""


class Note(Stored):
    """Figures of a training over one or several epochs, or over ten minutes of one."""

    schema_: Literal["autotune.realised/1"] = Field(alias="schema")
    result: str = Field(description="when the result was created, which identifies it")
    training: str = Field(description="identifies the training")
    ended: AwareDatetime
    hostname: str
    cpu: str | None = Field(description="the processor's model")
    cpus: Whole = Field(description="number that processes may use there")
    torch: str
    gpu: str | None = Field(description="null: none was used")
    ranks: Whole = Field(gt=0, description="number that trained together; the first one writes")
    samples: Whole = Field(gt=0, description="of all ranks")
    seconds: Seconds = Field(gt=1e-6, description="of training: start-up, first steps and evaluation are left out")
    wait_seconds: Seconds | None = Field(description="of them, waiting for batches; null: no loader was seen")
    device_memory_bytes: Whole | None = Field(description="reserved on the GPU, peak since the process began")
    host_memory_bytes: Whole | None = Field(description="PSS of the process tree at the end; null on several ranks")
    taken_fraction: Figure | None = Field(description="of the CPUs, by other load; null on several ranks")
    sm_clock_mhz: Figure | None = Field(description="of the GPU at the end; null where torch cannot read it")
    sample_elements: Figure | None = Field(
        description="mean elements of a sample in a batch's first tensor; null where all batches are of one shape"
    )
    compiled: bool = Field(description="torch.compile compiled something meanwhile, so the rate is not steady")

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


@dataclass(frozen=True)
class Training:
    """The notes of one training, in order of time, without those in which something was compiled."""

    notes: tuple[Note, ...]

    @property
    def seconds(self) -> float:
        """Seconds of training in all notes."""
        return sum(note.seconds for note in self.notes)

    @property
    def rate(self) -> float:
        """Samples per second over all notes."""
        return sum(note.samples for note in self.notes) / self.seconds

    @property
    def hostname(self) -> str:
        """The host that trained."""
        return self.notes[-1].hostname

    @property
    def ended(self) -> datetime:
        """When the last note was written."""
        return self.notes[-1].ended


@dataclass(frozen=True)
class Trainings:
    """All trainings noted beside a result."""

    measured: Measurement  # the result's claim
    on_cpu: bool  # the claim was measured there
    alike: tuple[Training, ...]  # with the measured machine, device, torch and ranks, in order of time
    elsewhere: int  # number of other trainings

    def ratio(self, training: Training | Note) -> float:
        """A rate over the claimed one."""
        return training.rate / self.measured.samples_per_second

    def ratios_text(self, trainings: Sequence[Training]) -> str:
        """``in 3 trainings: 0.99, 1.01, 0.98 of the claimed rate``."""
        shown = trainings[-MOST_SHOWN:]
        ratios = ", ".join(f"{self.ratio(training):.2f}" for training in shown)
        counted = f"{len(trainings)} training{'' if len(trainings) == 1 else 's'}"
        last = f", the last {len(shown)}" if len(shown) < len(trainings) else ""
        return f"in {counted}{last}: {ratios} of the claimed rate"

    def sentences(self) -> list[str]:
        """Rates of the trainings, and why the last one fell short, if it did; empty without notes."""
        lines = []
        if self.alike:
            lines.append(self.ratios_text(self.alike))
            lines += [sentence for sentence in [self.shortfall(self.alike[-1])] if sentence is not None]
        if self.elsewhere:
            counted = "1 training is" if self.elsewhere == 1 else f"{self.elsewhere} trainings are"
            lines.append(f"{counted} not counted: on another machine, device, torch or number of ranks")
        return lines

    def shortfall(self, training: Training) -> str | None:
        """By how much a training fell short, and what had changed; None where it did not, or only briefly."""
        short = Training(tuple(note for note in training.notes if self.ratio(note) < SHORT))
        if not short.notes or short.seconds < SHORT_SECONDS:
            return None
        when = f"the training that ended {training.ended:%Y-%m-%d %H:%M %Z}"
        missing = f"fell {percent(1 - self.ratio(short))} short for {format_seconds(short.seconds)}"
        return f"{when} {missing}: {self._cause(short)}"

    def _cause(self, short: Training) -> str:
        """The change that explains most of a shortfall."""
        measured, telemetry = self.measured, self.measured.telemetry
        causes: list[tuple[float, str]] = []  # with the share of the rate that remains under each

        def add(share: float, what: str, here: str, there: str) -> None:
            causes.append((share, f"{what} {here}, {there} when it was measured"))

        waited = _mean(short, lambda note: note.wait_seconds and note.wait_seconds / note.seconds)
        if waited is not None:
            then = measured.data_wait_fraction
            share = (1 - waited) / max(1e-9, 1 - then)
            add(share, "waiting for data took", f"{percent(waited)} of the time", percent(then))
        taken = _mean(short, lambda note: note.taken_fraction)
        if taken is not None:
            then = telemetry.taken_fraction if telemetry is not None else 0.0
            add(1 - max(0.0, taken - then), "other load took", f"{percent(taken)} of the CPUs", percent(then))
        clock, clock_then = _mean(short, lambda note: note.sm_clock_mhz), telemetry and telemetry.sm_clock_mhz
        if clock and clock_then:
            add(clock / clock_then, "the GPU's clock was", f"{clock:.0f} MHz", f"{clock_then:.0f} MHz")
        size, size_then = _mean(short, _elements), self._usual_elements()
        if size and size_then:
            text = f"samples had {size:.0f} elements, {size_then:.0f} in notes that do not fall short"
            causes.append((size_then / size, text))
        share, why = min(causes, default=(1.0, ""))
        if 1 - share >= EXPLAINED * (1 - self.ratio(short)):
            return why
        peak = max(self._memory(note) or 0 for note in short.notes)
        then_bytes = measured.host_memory_bytes if self.on_cpu else measured.device_memory_bytes
        if then_bytes and peak > GROWN * then_bytes:
            return f"memory reached {format_bytes(peak)}, {format_bytes(then_bytes)} when it was measured"
        return "clock, waiting, memory, other load and length of samples have not changed enough to explain it"

    def _memory(self, note: Note) -> int | None:
        return note.host_memory_bytes if self.on_cpu else note.device_memory_bytes

    def _usual_elements(self) -> float | None:
        """Mean elements of a sample, in notes that do not fall short."""
        usual = [note for training in self.alike for note in training.notes if self.ratio(note) >= SHORT]
        return _mean(Training(tuple(usual)), _elements) if usual else None


def trainings_path(path: Path) -> Path:
    """The notes of trainings with a result, beside its file: ``train-cpu.realised.jsonl``."""
    return path.with_suffix(".realised.jsonl")


def order_of(result: Result, path: str | Path, step_samples: float | None) -> Order:
    """The recorder's order to note a training on this machine; see `recorder.realised`."""
    cpu = read_cpu({})
    return {
        "path": str(trainings_path(Path(path).absolute())),
        "result": result.created.isoformat(),
        "cpu": cpu.model,
        "cpus": cpu.budget,
        "step_samples": step_samples,
    }


def read_trainings(result: Result, path: Path) -> Trainings | None:
    """The trainings noted beside a result's file; None where the result claims no rate.

    Notes are not part of a result: if they cannot be read, there are no trainings. Lines that are no notes of this
    result, such as a truncated one, are skipped.
    """
    measured = result.best.measurement
    if measured is None:
        return None
    alike: dict[str, list[Note]] = {}
    others: set[str] = set()
    for note in _notes(trainings_path(path)):
        if note.result != result.created.isoformat() or note.compiled:
            continue
        if _is_alike(note, result):
            alike.setdefault(note.training, []).append(note)
        else:
            others.add(note.training)
    trainings = sorted((Training(tuple(notes)) for notes in alike.values()), key=lambda training: training.ended)
    return Trainings(measured, result.constraints.device == "cpu", tuple(trainings), len(others - alike.keys()))


def _notes(path: Path) -> Iterator[Note]:
    try:
        if not path.is_file():
            return
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MOST_BYTES))  # the latest, where there are very many
            lines = file.read(MOST_BYTES).splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValidationError):
            yield Note.model_validate_json(line)


def _is_alike(note: Note, result: Result) -> bool:
    """Whether a training ran on a machine and a device like the measured ones, with the same torch and ranks."""
    cpu, gpus = result.hardware.cpu, result.hardware.gpus
    place = (note.cpu, note.cpus, note.torch, note.ranks) == (
        cpu.model, cpu.budget, result.software.torch, result.best.config.ranks,
    )  # fmt: skip
    names_gpu = result.constraints.device in ("cuda", "rocm")  # notes hold no name of other devices
    return place and (note.gpu in [gpu.name for gpu in gpus[:1]] if names_gpu else note.gpu is None)


def _elements(note: Note) -> float | None:
    return note.sample_elements


def _mean(training: Training, read: Callable[[Note], float | None]) -> float | None:
    """The mean of a figure over all notes that have it, weighted by seconds."""
    figures = [(note.seconds, figure) for note in training.notes if (figure := read(note)) is not None]
    total = sum(seconds for seconds, _ in figures)
    return sum(seconds * figure for seconds, figure in figures) / total if total else None
