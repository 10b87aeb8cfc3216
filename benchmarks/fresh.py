"""Runs a function in a fresh process: the allocator and the threads of a process cannot be reverted."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def afresh(function: Callable[Arguments, Returned], *arguments: Arguments.args, **named: Arguments.kwargs) -> Returned:
    """What a function of a module returns in a process of its own, in which workers start as in a person's script."""
    with ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn"), initializer=_start_workers_as_scripts_do
    ) as pool:
        return pool.submit(function, *arguments, **named).result()


def _start_workers_as_scripts_do() -> None:
    """A process that was spawned would spawn a loader's workers too."""
    multiprocessing.set_start_method(None, force=True)
