"""Runs a function in a fresh process: the allocator and the threads of a process cannot be reverted."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple, ParamSpec, TypeVar

import psutil

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def afresh(function: Callable[Arguments, Returned], *arguments: Arguments.args, **named: Arguments.kwargs) -> Returned:
    """What a function of a module returns in a process of its own, in which workers start as in a person's script."""
    with ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn"), initializer=_start_workers_as_scripts_do
    ) as pool:
        return pool.submit(function, *arguments, **named).result()


def afresh_watched(
    function: Callable[Arguments, Returned], *arguments: Arguments.args, **named: Arguments.kwargs
) -> tuple[Returned, float]:
    """What `afresh` returns, and which share of all CPUs other processes took meanwhile."""
    since = watched()
    returned = afresh(function, *arguments, **named)
    return returned, foreign_since(since)


class Watched(NamedTuple):
    """A moment, the CPU time that all processes had taken by then, and what ours had."""

    seconds: float
    busy: float
    own: float


def watched() -> Watched:
    """This moment; ours are this process and those that it has waited for."""
    times = psutil.cpu_times()
    return Watched(time.perf_counter(), float(times.user + times.system), sum(os.times()[:4]))


def foreign_since(before: Watched) -> float:
    """The share of all CPUs that processes of others took since then."""
    now = watched()
    foreign = (now.busy - before.busy) - (now.own - before.own)
    return max(0.0, foreign / ((os.cpu_count() or 1) * (now.seconds - before.seconds)))


def _start_workers_as_scripts_do() -> None:
    """A process that was spawned would spawn a loader's workers too."""
    multiprocessing.set_start_method(None, force=True)
