"""What a node must have for a task, told before the task waits for ever. Needs no Ray."""

from __future__ import annotations

import multiprocessing
import threading
import time
from types import SimpleNamespace
from typing import Any

from autotune.fleet.campaign import Ending
from autotune.fleet.job import Job
from autotune.fleet.plan import MachineKind
from autotune.fleet.ray_driver import Driver, lacking

NODE: dict[str, Any] = {
    "Alive": True,
    "Labels": {"ray.io/node-id": "f00", "kind": "a100"},
    "Resources": {"CPU": 8.0, "GPU": 1.0, "memory": 1e9, "node:10.0.0.1": 1.0, "ssd": 2.0},
}


def test_a_node_that_has_all_of_it_lacks_nothing() -> None:
    """CPUs, GPUs, labels and custom resources together, on one node."""
    assert lacking(MachineKind(cpus=8, gpus=1, labels={"kind": "a100"}, resources={"ssd": 1.0}), [NODE]) is None


def test_what_no_node_has_is_told_with_what_there_is() -> None:
    """The sentence names both, without what Ray itself adds to each node."""
    why = lacking(MachineKind(gpus=2, labels={"kind": "h100"}), [NODE])
    assert why == "no node of the cluster has CPU=1, GPU=2, kind=h100; it has CPU=8, GPU=1, kind=a100, ssd=2"


def test_a_dead_node_counts_for_nothing() -> None:
    """Ray goes on listing it."""
    assert (
        lacking(MachineKind(cpus=1), [NODE | {"Alive": False}]) == "no node of the cluster has CPU=1; it has no nodes"
    )


class Refusing:
    """A Ray that takes no label."""

    def nodes(self) -> list[dict[str, Any]]:
        """One that has all of it."""
        return [NODE]

    def remote(self, function: Any) -> Refusing:
        """A task."""
        return self

    def options(self, **options: Any) -> Refusing:
        """What it needs."""
        raise ValueError(f"Invalid label selector {options['label_selector']}")


class Slow(Refusing):
    """A Ray whose tasks do not end; it notes what it is asked for."""

    exceptions = None

    def __init__(self) -> None:
        self.calls: list[str] = []

    def options(self, **options: Any) -> Any:
        """A task that starts."""
        return SimpleNamespace(remote=lambda job: self.calls.append("start") or job.machine)

    def wait(self, references: list[str], timeout: float) -> tuple[list[str], list[str]]:
        """Nothing ends."""
        self.calls.append("wait")
        time.sleep(0.01)
        return [], references

    def cancel(self, reference: str) -> None:
        """Notes the task."""
        self.calls.append(f"cancel {reference}")


def test_no_request_waits_for_a_task() -> None:
    """Else each start would take half a second, and an interruption would come after all of them."""
    parent, driver = multiprocessing.Pipe()
    for machine in ("one", "two"):
        parent.send({"job": Job(machine, (), 1.0), "kind": MachineKind()})
    parent.send({"cancel": True})
    ray = Slow()
    serving = threading.Thread(target=Driver(ray, 0.0, driver).serve, daemon=True)
    serving.start()
    time.sleep(0.1)
    parent.close()
    serving.join(10)
    assert ray.calls[:5] == ["start", "start", "cancel one", "cancel two", "wait"]


def test_what_ray_refuses_is_told_of_its_machine_and_the_driver_goes_on() -> None:
    """Without that, the first one takes all others along."""
    parent, driver = multiprocessing.Pipe()
    serving = threading.Thread(target=Driver(Refusing(), 0.0, driver).serve, daemon=True)
    serving.start()
    why = "Ray refuses it: ValueError: Invalid label selector {'kind': 'a100'}"
    for machine in ("one", "two"):
        parent.send({"job": Job(machine, (), 1.0), "kind": MachineKind(labels={"kind": "a100"})})
        assert parent.recv() == Ending(machine, "failed", message=why)
