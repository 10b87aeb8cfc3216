"""Trains in a process of its own, in the plain loop or through a framework; `benchmarks.alternate` gives the turns.

Its workers are in its process group, so that all of it can be stopped at once.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
import warnings
from typing import NamedTuple

import torch

from autotune.errors import AutotuneError
from autotune.results.result import Side
from autotune.workload.target import load_workload
from benchmarks import frameworks
from benchmarks.plain import Loop, set_process
from benchmarks.stopwatch import Trainee, Turns, Wire

PLAIN = "plain"
"""The independent loop, where a framework could stand."""
NOT_IN_EFFECT = "does not apply what was tuned"
"""What all integrations say when a knob is not."""


class Request(NamedTuple):
    """What to train.

    Attributes:
        target: The workload.
        side_json: The `Side` of a result: config, and arguments of `build()`.
        device: ``cpu``, ``cuda`` or ``mps``.
        seed: Of the model and of the order of samples.
        warmup_seconds: Left out after the first steps.
        loop: `PLAIN`, or a framework.
    """

    target: str
    side_json: str
    device: str
    seed: int
    warmup_seconds: float
    loop: str = PLAIN


class Summary(NamedTuple):
    """What is told last.

    Attributes:
        last_loss: To see that it trained.
        not_in_effect: What a framework's integration says of knobs that are not.
    """

    last_loss: float
    not_in_effect: tuple[str, ...]


def serve(wire: Wire, request: Request) -> None:
    """The whole life of the process: trains, and tells what went wrong as an exception."""
    os.setpgid(0, 0)
    multiprocessing.set_start_method(None, force=True)  # else workers would be spawned, as this process was
    try:
        wire.recv()  # importing is over; what follows wants the machine for itself
        wire.send(train(wire, request))
    except AutotuneError as error:
        wire.send(error)
    except Exception:  # noqa: BLE001  whatever the user's code raises is told to whoever waits
        wire.send(RuntimeError(f"{request.target} in the {request.loop} loop:\n{traceback.format_exc()}"))


def train(wire: Wire, request: Request) -> Summary:
    """Trains in this process, in the turns that the wire gives.

    Raises:
        RuntimeError: When training ended by itself before it was told to.
    """
    side = Side.model_validate_json(request.side_json)
    # A framework is imported here: that takes seconds, and is no part of the warm-up.
    make = frameworks.loop_class(request.loop) if request.loop != PLAIN else Loop
    torch.manual_seed(request.seed)
    began = time.perf_counter()
    if request.loop == PLAIN:
        set_process(side.config, torch.device(request.device))
    trainee: Trainee = make(load_workload(request.target, side.parameters), side.config, request.device)
    turns = Turns(trainee, wire, began, request.warmup_seconds)
    over = False

    def on_step(samples: int) -> bool:
        nonlocal over
        over = turns.on_step(samples)
        return over

    with warnings.catch_warnings(record=True) as caught:
        trainee.train(on_step)
    if not over:
        raise RuntimeError(f"training ended by itself after {trainee.batches} batches")
    for one in caught:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    said = tuple(str(one.message) for one in caught if NOT_IN_EFFECT in str(one.message))
    return Summary(float(trainee.last_loss), said)
