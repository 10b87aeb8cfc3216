"""Records a whole training's rate, waits and memory, as lines of JSON.

Between two batches it only counts, and times the wait. All other work is done where training pauses: at an epoch's
end, before an evaluation, or after ten minutes. A span of training lasts from the request for a batch to the
end of its epoch, or until something other than training begins. Only spans with optimizer steps count. It waits for the
device only at the ends of spans, never at a step.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import platform
import secrets
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from time import perf_counter  # by name: the script may replace what `time` holds
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..timing.clock import clock_of
from ..timing.usage import Processors, memory_bytes
from ..torch_settings.compiled import compiled_graphs
from ..torch_settings.naming import batches_of, count_of, is_own_batch_sampler, length_of, tensors_in
from . import hooks
from .batches import Watched
from .hooks import harmless
from .ranks import count_ranks, this_rank
from .surroundings import here

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

SCHEMA = "autotune.realised/1"
WARM_STEPS = 10
"""Optimizer steps to leave out, at the start and after torch.compile has compiled something. Not tuned."""
LEAST_SECONDS, MOST_SECONDS = 30.0, 600.0
"""Training time per note: short epochs share a note, long ones have several. Not tuned."""
LAST_SECONDS = 1.0
"""Least training time in the last note, which is written when the process ends. Not tuned."""
COST_SHARE = 0.00015
"""Largest share of time for making notes: the longer the last one took, the later the next one."""
DRAIN_STEPS = 100
"""Least steps between two waits for a device. Not tuned."""


class Order(TypedDict):
    """The order to take notes.

    Attributes:
        path: The file's absolute path: a script may change its folder.
        result: Creation time of the result, which identifies it.
        cpu: The processor's model.
        cpus: Number of processors that this machine's processes may use.
        step_samples: Samples of an optimizer step on one rank, if no DataLoader is drawn from, so that they cannot be
            counted. If it is None, nothing is noted there.
    """

    path: str
    result: str
    cpu: str | None
    cpus: int
    step_samples: float | None


def note_training(order: Order, device: torch.device) -> None:
    """Starts notes of a new training in this process."""
    notes = _NOTED.get(order["path"])
    if notes is not None:
        notes.restart()
        return
    _NOTED[order["path"]] = notes = Notes(order, device)
    register_optimizer_step_post_hook(notes.stepped)  # saves a call per step over `hooks.on_step`

    def iterate(loader: DataLoader[Any], original: hooks.Iterate) -> Iterator[Any]:
        if torch.is_grad_enabled():
            return notes.reads(loader, lambda: original(loader))
        notes.evaluates()
        return original(loader)

    hooks.on_iterate(iterate)


class Reading:
    """Counts of a pass through a loader.

    Args:
        requested: Time of the request; starting the workers counts as waiting.
        size: Samples of a batch; None if they are counted in each.
        length: Samples of a whole pass; None if unknown.

    Attributes:
        requested: Time of the request.
        is_over: Whether the pass has ended.
        count: Batches so far.
        trained: Batches that had been drawn at the last optimizer step.
        waited: Seconds of waits since `take`.
        shapes: Samples, and elements of their first tensors, since `take`.
        is_looked_at: Whether `look` is called with each batch: until they are known to have a constant size and shape.
    """

    def __init__(self, requested: float, size: int | None, length: int | None) -> None:
        self.requested = requested
        self.is_over = False
        self.count = self.trained = 0
        self.waited = perf_counter() - requested
        self.shapes = (0, 0)
        self.is_looked_at = True
        self._size, self._length = size, length
        self._taken = 0
        self._varies = False
        self._first_shape: Any = None

    def look(self, batch: Any) -> None:
        """Counts samples and elements; stops once batches have a constant size and shape."""
        tensor = next((one for one in tensors_in(batch) if one.dim()), None)
        shape = tensor.shape if tensor is not None else (count_of(batch),)
        self.shapes = self.shapes[0] + shape[0], self.shapes[1] + math.prod(shape)
        if self._first_shape is None:
            self._first_shape = shape
        self._varies |= shape != self._first_shape
        self.is_looked_at = self._varies or self._size is None or self.count < WARM_STEPS

    def take(self) -> tuple[int, float, float | None]:
        """Samples and seconds of waiting since the last call, and mean elements per sample if they vary."""
        (rows, elements), waited = self.shapes, self.waited
        samples = rows if self._size is None else (self.count - self._taken) * self._size
        if self._size is not None and self._length is not None and self.is_over:  # the last batch was incomplete
            samples -= max(0, self.count * self._size - self._length)
        self._taken = self.count
        self.shapes, self.waited = (0, 0), 0.0
        return max(0, samples), waited, elements / rows if self._varies and rows else None


class CountedBatches(Watched):
    """The batches of a pass, counted in a `Reading`, whose attributes are faster to read than those of a proxy."""

    def __init__(self, batches: Iterator[Any], reading: Reading, notes: Notes) -> None:
        super().__init__(batches)
        self._counting = reading, notes, batches.__next__

    def __next__(self) -> Any:
        reading, notes, draw = self._counting
        if (began := perf_counter()) > notes.due:
            began = notes.attend(reading, began) or began
        try:
            batch = draw()
        except BaseException:
            self.is_over = reading.is_over = True
            notes.ended(reading)
            raise
        reading.waited += perf_counter() - began
        reading.count += 1
        if reading.is_looked_at:
            notes.look(reading, batch)
        return batch


class Notes:
    """Measures a training, and appends notes to a file.

    Attributes:
        due: A time on the host's clock. The next draw after it calls `attend`: each one, until an optimizer has stepped
            in this span.
    """

    def __init__(self, order: Order, device: torch.device) -> None:
        self._order = order
        self._device = device
        self._synchronize = clock_of(device).synchronize
        self._cost = 0.0
        self._is_over = False
        self._start()
        self._stop_watching = hooks.on_mode(self.on_mode)
        atexit.register(self.end)

    def _start(self) -> None:
        """Resets all state for a new training."""
        self._process = os.getpid()
        self._training = secrets.token_hex(4)
        self._ranks = 1
        self.due = -math.inf
        self._begun: float | None = None
        self._steps, self._warm_at, self._drained_at = 0, WARM_STEPS, -DRAIN_STEPS
        self._begun_at = self._begun_count = 0  # steps, and batches of the pass
        self._reading: Reading | None = None
        self._beside: list[Reading] = []  # drawn from in the same steps
        self._closed = -math.inf
        self._graphs = compiled_graphs()
        self._clear()

    def _clear(self) -> None:
        """Resets the sums of a note."""
        self._samples = self._seconds = self._waited = 0.0
        self._elements: list[tuple[int, float]] = []  # samples, and elements of each
        self._processors = Processors()

    @harmless
    def restart(self) -> None:
        """Begins another training, perhaps in a forked process."""
        if self._is_over:
            return
        if self._steps:
            self.end()
        self._start()

    def reads(
        self, loader: DataLoader[Any], iterate: Callable[[], Iterator[Any]], batch_size: int | None = None
    ) -> Iterator[Any]:
        """Starts a pass through a loader that may feed training."""
        if self._is_over:
            return iterate()
        requested = perf_counter()
        sizes = self._sizes(loader, batch_size)
        if sizes is None:
            return iterate()
        self.due = -math.inf  # the next draw, from this or another pass, calls `attend`
        batches = iterate()
        return CountedBatches(batches, Reading(requested, *sizes), self)

    @harmless
    def _sizes(self, loader: DataLoader[Any], batch_size: int | None) -> tuple[int | None, int | None]:
        """Size and length of a `Reading`."""
        if is_own_batch_sampler(loader):
            return None, None
        sampler, own_size, drops = batches_of(loader)
        size = batch_size or own_size
        length = length_of(sampler) if size is not None else None
        # Without a length, each worker may end with an incomplete batch.
        return (size if length is not None else None), (None if drops else length)

    @harmless
    def look(self, reading: Reading, batch: Any) -> None:
        """Counts a batch whose size or shape is unknown."""
        if not self._is_over:
            reading.look(batch)

    def stepped(self, *_: Any) -> None:
        """Counts a step of an optimizer."""
        if torch.compiler.is_dynamo_compiling():  # a compiled step would be recompiled for each count
            return
        self._steps += 1
        if self._reading is not None:
            self._reading.trained = self._reading.count
        elif self._order["step_samples"] is not None:
            self._step_alone()

    @harmless
    def attend(self, reading: Reading, now: float) -> float:
        """Does work that is due before a draw; returns the time after it."""
        if self._begun is None:
            self._reading = reading
            if self._is_warm():
                self._begin(reading, now)
        elif reading is not self._reading:
            self._other(reading, now)
        elif self._has_stepped:
            self._confirm(self._begun, now)
        return perf_counter()

    def _other(self, reading: Reading, now: float) -> None:
        """Handles a draw from another loader: for the same step as the first one, or for another purpose."""
        former = self._reading
        is_first_draw = former is not None and former.count - self._begun_count == 1
        if self._holds and (self._has_stepped or is_first_draw):
            reading.take()
            self._beside.append(reading)
            return
        self._close(now)
        self._reading = reading
        self._begin(reading, now)

    def _confirm(self, begun: float, now: float) -> None:
        """Confirms that the current span is training; a long span is noted in parts."""
        self.due = begun + MOST_SECONDS - self._seconds
        if now > self.due:
            self._take(now - begun)
            self._note()
            self._begun = perf_counter()
            self.due = self._begun + MOST_SECONDS

    @harmless
    def _step_alone(self) -> None:
        """Handles a step of training without a loader."""
        now = perf_counter()
        if now > self.due:
            if self._begun is not None:
                self._confirm(self._begun, now)
            elif self._is_warm():
                self._begin(None, now)

    @harmless
    def ended(self, reading: Reading) -> None:
        """Ends a pass."""
        if reading is self._reading or reading in self._beside:
            self._close(perf_counter())

    @harmless
    def evaluates(self) -> None:
        """Ends a span, because a loader is read without gradients."""
        if not self._holds:
            self._close(perf_counter())

    @harmless
    def on_mode(self, module: Any, training: bool) -> None:
        """Begins or ends a span when a module is switched to training or evaluation, except within a step."""
        if module.training == training or self._holds:
            return
        if not training:
            self._close(perf_counter())
        elif training and self._begun is None and self._reading is None and self._steps and self._is_warm():
            self._begin(None, perf_counter())

    @harmless
    def end(self) -> None:
        """Writes the last note at the end of the process."""
        if self._is_over or os.getpid() != self._process:
            return
        self._close(perf_counter())
        if self._seconds >= LAST_SECONDS and self._samples:
            self._note()

    def leave(self) -> None:
        """Writes the last note before the process ends, and stops watching."""
        self.end()
        self.give_up()
        self._stop_watching()
        atexit.unregister(self.end)

    def give_up(self, _: str = "") -> None:
        """Stops taking notes."""
        self._is_over, self._begun, self.due = True, None, math.inf

    @property
    def _holds(self) -> bool:
        """Whether batches were drawn since the last step."""
        return self._reading is not None and self._reading.count != self._reading.trained

    @property
    def _has_stepped(self) -> bool:
        """Whether an optimizer has stepped in this span."""
        return self._begun is not None and self._steps > self._begun_at

    def _is_warm(self) -> bool:
        """Whether nothing was compiled in the last steps."""
        if self._is_over:
            self.due = math.inf
            return False
        if (graphs := compiled_graphs()) != self._graphs:
            self._graphs, self._warm_at = graphs, self._steps + WARM_STEPS
        return self._steps >= self._warm_at

    def _begin(self, reading: Reading | None, now: float) -> None:
        """Begins a span: with the start of the loader, if it directly follows the former span."""
        if this_rank() or os.getpid() != self._process:
            self.give_up()  # the first rank writes for all
            return
        self._ranks = count_ranks()  # a script may leave its process group before the last note
        if reading is not None and not reading.count and reading.requested > self._closed:
            now = reading.requested
        else:
            now = self._drained(now)
            if reading is not None:
                reading.take()
        self._begun, self._begun_at, self._begun_count = now, self._steps, reading.count if reading is not None else 0
        self._beside = []
        if reading is None:
            self.due = now + MOST_SECONDS - self._seconds

    def _close(self, now: float) -> None:
        """Ends a span; a span without a step was not training."""
        begun, self._closed = self._begun, now
        if begun is None:
            return
        if self._has_stepped:
            self._take(self._drained(now) - begun)
        else:
            for reading in (self._reading, *self._beside):
                if reading is not None:
                    reading.take()
        self._begun, self.due = None, -math.inf
        if self._samples and self._seconds >= max(LEAST_SECONDS, self._cost / COST_SHARE):
            self._note()

    def _drained(self, now: float) -> float:
        """The time when the device has finished; `now` on the CPU, or if it was waited for recently."""
        if self._device.type == "cpu" or self._steps - self._drained_at < DRAIN_STEPS:
            return now
        self._synchronize()
        self._drained_at = self._steps
        return perf_counter()

    def _take(self, seconds: float) -> None:
        """Adds a span, or its part so far."""
        self._seconds += seconds
        if self._reading is None:
            self._samples += (self._steps - self._begun_at) * (self._order["step_samples"] or 0)
        else:
            samples, waited, elements = self._reading.take()
            self._samples += samples
            self._waited += waited + sum(reading.take()[1] for reading in self._beside)
            if elements is not None:
                self._elements.append((samples, elements))
        self._begun_at = self._steps

    def _note(self) -> None:
        """Appends a line; another training may write to the file too."""
        began = perf_counter()
        place, graphs = {**here(), "ranks": self._ranks}, compiled_graphs()
        if self._device.type != "cuda":
            place["gpu"] = None  # the script may use CUDA for something else
        counted = sum(samples for samples, _ in self._elements)
        is_alone = self._ranks == 1
        note = {
            "schema": SCHEMA,
            "result": self._order["result"],
            "training": self._training,
            "ended": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "hostname": platform.node(),
            "cpu": self._order["cpu"],
            "cpus": self._order["cpus"],
            **place,
            "samples": round(self._samples * self._ranks),
            "seconds": round(self._seconds, 6),
            "wait_seconds": round(self._waited, 6) if self._reading is not None else None,
            "device_memory_bytes": self._peak_bytes(),
            "host_memory_bytes": memory_bytes() if is_alone else None,
            "taken_fraction": round(self._processors.taken(), 4) if is_alone else None,
            "sm_clock_mhz": self._clock_mhz(),
            "sample_elements": sum(s * e for s, e in self._elements) / counted if counted else None,
            "compiled": graphs != self._graphs,
        }
        self._graphs = graphs
        _append(self._order["path"], json.dumps(note) + "\n")
        self._clear()
        self._cost = perf_counter() - began

    def _peak_bytes(self) -> int | None:
        """Peak device memory that torch has reserved since the process began."""
        return int(torch.cuda.max_memory_reserved(self._device)) if self._device.type == "cuda" else None

    def _clock_mhz(self) -> int | None:
        """The clock of the GPU's multiprocessors; None if torch cannot read it, e.g. without ``nvidia-ml-py``."""
        with contextlib.suppress(Exception):
            return int(torch.cuda.clock_rate(self._device)) if self._device.type == "cuda" else None
        return None


_NOTED: dict[str, Notes] = {}
"""The notes of this process, by file."""


def _append(path: str, line: str) -> None:
    """Appends in one write, so that the lines of several processes do not mix."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
