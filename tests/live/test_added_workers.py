"""Workers that a script did not ask for: what they hand over, and what they leave to the script."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from autotune.recorder.added_workers import Raised, as_added
from autotune.recorder.drawing import Drawing, Indices, Own
from autotune.recorder.live.pools import Pool
from autotune.recorder.stream import ITERATE

LARGE = torch.zeros(4, 10_000)


class Pair(NamedTuple):
    """A batch of a script's own kind."""

    first: torch.Tensor
    second: torch.Tensor


class Held:
    """An object that torch does not look into."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class Samples(Dataset[Any]):
    """Reads what batches may be made of."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        values = torch.arange(12.0).reshape(3, 4) + index
        parts = {"held": Held(values), "row": LARGE[index], "weight": nn.Parameter(values.clone())}
        return Pair(values, values[:, :3]), parts


def _pool(**arguments: Any) -> tuple[Pool, list[Any]]:
    loader = DataLoader(Samples(), batch_size=None, **arguments)
    own = {"dataset": loader.dataset, "batch_size": None, "collate_fn": loader.collate_fn}
    pool = Pool(loader, (("num_workers", 1),), {**own, "num_workers": 1}, 60.0)
    pool.open(Indices(loader, Own.of(loader), loader._index_sampler, begins=True))
    return pool, [pool.take() for _ in range(4)]


def _launched() -> list[Any]:
    loader = Drawing(Samples(), batch_size=None, num_workers=1)
    return list(loader.read(Own(), None, ITERATE, print, goes_on=False))


@pytest.mark.parametrize("is_launched", [False, True])
def test_what_added_workers_hand_over_is_the_scripts_own(is_launched: bool) -> None:
    """No tensor is an open file; kinds, and tensors that share their values, stay."""
    batches = _launched() if is_launched else _pool()[1]
    pair, parts = batches[1]
    assert (type(pair), type(parts["weight"])) == (Pair, nn.Parameter)
    assert not any(one.is_shared() for one in (*pair, parts["held"].tensor, parts["row"], parts["weight"]))
    assert torch.equal(pair.first, torch.arange(12.0).reshape(3, 4) + 1)
    pair.first[0, 0] = 99.0
    assert pair.second[0, 0] == parts["held"].tensor[0, 0] == 99.0
    assert parts["row"].untyped_storage().nbytes() == parts["row"].nbytes  # not the data set's whole memory


def test_a_script_with_workers_gets_what_they_hand_over() -> None:
    """As untuned."""
    assert _pool(num_workers=2)[1][1][0].first.is_shared()


class BadError(Exception):
    """Its arguments are not what it passes on."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"{index}: {why}")
        self.index = index


class PrefixedError(Exception):
    """Made again of what it passes on, it would say something else."""

    def __init__(self, why: str) -> None:
        super().__init__(f"bad: {why}")


class Failing(Samples):
    """Raises something for each sample but the last one."""

    def __getitem__(self, index: int) -> Any:
        class LocalError(ValueError):
            pass

        if index == 0:
            raise BadError(index, "corrupt") from KeyError("cause")
        if index == 1:
            open("/no/such/file")  # noqa: SIM115
        if index == 2:
            raise PrefixedError("value")
        if index == 3:
            b"\xff".decode()
        if index == 4:
            raise LocalError("within")
        return index

    def __len__(self) -> int:
        return 6


def _raised(batches: Iterator[Any]) -> list[Any]:
    got: list[Any] = []
    while True:
        try:
            got.append(next(batches))
        except StopIteration:  # noqa: PERF203
            return got
        except Exception as error:
            got.append(error)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_what_reading_raises_arrives_as_it_was(context: str) -> None:
    """Of the same class, with its attributes and cause; reading goes on after it, in order."""
    loader = Drawing(Failing(), batch_size=None, num_workers=2, multiprocessing_context=context)
    plain = _raised(iter(DataLoader(Failing(), batch_size=None)))
    found = _raised(loader.read(Own(), None, ITERATE, print, goes_on=False))
    assert found[5:] == plain[5:] == [5]
    for one, other in zip(found[:4], plain[:4], strict=True):
        assert (type(one), one.args, vars(one), str(one)) == (type(other), other.args, vars(other), str(other))
    assert found[0].index == 0
    assert isinstance(found[0].__cause__, KeyError)
    assert found[1].filename == "/no/such/file"
    assert "in __getitem__" in str(found[1].__cause__)
    assert type(found[4]) is ValueError  # the nearest class that can be sent


HEARS = """
import atexit, os, signal, sys, time
from tests.live.test_added_workers import _pool
def heard(number, _):
    print("heard", number, os.getpid(), flush=True)
for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM, signal.SIGRTMIN + 1):
    signal.signal(number, heard)
atexit.register(lambda: print("left", os.getpid(), flush=True))
if __name__ == "__main__":
    pool, batches = _pool()
    [worker] = pool.batches._workers
    for name in ("SIGINT", "SIGUSR1"):
        os.killpg(0, getattr(signal, name))
    time.sleep(0.3)
    print("lives", worker.is_alive(), os.getpid())
    os.kill(worker.pid, signal.SIGTERM)
    worker.join(10)
    print("lives", worker.is_alive(), os.getpid())
"""


def test_added_workers_run_no_handler_of_the_scripts() -> None:
    """Ctrl-C reaches all processes of a terminal, but only the script may save its checkpoint."""
    done = subprocess.run(
        [sys.executable, "-c", HEARS], capture_output=True, text=True, timeout=120, start_new_session=True
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:-1] for line in lines] == [
        ["heard", str(int(signal.SIGINT))],
        ["heard", str(int(signal.SIGUSR1))],
        ["lives", "True"],
        ["lives", "False"],
        ["left"],
    ], done
    assert len({line[-1] for line in lines}) == 1


def test_what_the_script_begins_its_workers_with_is_called_last(tmp_path: Path) -> None:
    """Its own choice of handlers holds."""
    file = tmp_path / "begun"
    loader = DataLoader(Samples(), batch_size=None, num_workers=1, worker_init_fn=as_added(_Begins(file)))
    next(iter(loader))
    assert file.read_text() == "0 True"


class _Begins:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, number: int) -> None:
        self.file.write_text(f"{number} {signal.getsignal(signal.SIGINT) is signal.SIG_IGN}")


class _HoldsError(Exception):
    def __init__(self, held: Any) -> None:
        super().__init__("broken")
        self.held = held


@pytest.mark.parametrize(("items", "is_whole"), [(10, True), (10_000_000, False)])
def test_an_exception_that_holds_a_data_set_is_not_sent_whole(items: int, is_whole: bool) -> None:
    """It would fill the memory of both processes; it comes in torch's own way."""
    try:
        raise _HoldsError(torch.zeros(items))
    except _HoldsError:
        raised = Raised()
    with pytest.raises(_HoldsError) as caught:
        raised.reraise()
    assert torch.is_tensor(caught.value.held) is is_whole
