"""Errors at first contact: each row of the guide is what a new user types in a fresh folder, and what is printed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.pages import text_of
from tests.processes import Command, temporary_of

PAGE = "docs/guides/errors.md"
MOST_LINES = 20
COLUMNS = 80

MODEL = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def data(samples):
    return TensorDataset(torch.randn(samples, 8), torch.randn(samples, 1))

def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])

def build():
    return {returned}
"""
GOOD = "nn.Linear(8, 1), data(512), loss"
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from autotune.cli import main; main()"
BESIDE_A_GPU = (
    "import sys; from tests.hardware.readings import FakeNvml, rtx_3060; sys.modules['pynvml'] = FakeNvml(rtx_3060()); "
    "from autotune.cli import main; main()"
)
AUTOTUNE = (sys.executable, "-m", "autotune")
AS_OTHERS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search")


class Row(NamedTuple):
    """A row of the guide."""

    wrong: str
    typed: str
    printed: str
    status: int


class Case(NamedTuple):
    """What a row's folder holds, and how the command starts there."""

    files: dict[str, str]
    program: Sequence[str] = AUTOTUNE
    prepare: Callable[[Path], Any] = lambda _: None


def returning(expression: str) -> Case:
    """A model whose `build` returns an expression."""
    return Case({"train.py": MODEL.format(returned=expression)})


def script(text: str) -> Case:
    """A training script."""
    return Case({"train.py": text})


def read_only(folder: Path) -> None:
    """As a folder of someone else's is."""
    folder.chmod(0o555)


FAST = {
    "no PyTorch": Case({"train.py": ""}, (sys.executable, "-c", WITHOUT_TORCH)),
    "no target": Case({}),
    "no function in the target": returning(GOOD),
    "no such module": returning(GOOD),
    "no such file": returning(GOOD),
    "no duration": returning(GOOD),
    "no knob": returning(GOOD),
    "an option in the wrong place": returning(GOOD),
    "no command": Case({}),
    "no such program": Case({}),
    "a folder without write permission": Case(
        {"train.py": ""}, (*(AS_OTHERS if os.geteuid() == 0 else ()), *AUTOTUNE), read_only
    ),
    "no result file": Case({}),
    "a result that is not JSON": returning(GOOD),
    "a result of another program": Case({"other.json": '{"accuracy": 0.9}'}),
}
SLOW = {
    "no such function": returning(GOOD),
    "a CPU build of torch beside a GPU": returning(GOOD)._replace(program=(sys.executable, "-c", BESIDE_A_GPU)),
    "`build()` returns nothing": returning("None"),
    "`build()` returns in another order": returning("data(512), nn.Linear(8, 1), loss"),
    "a loader in place of the dataset": returning("nn.Linear(8, 1), DataLoader(data(512)), loss"),
    "a criterion in place of the loss": returning("nn.Linear(8, 1), data(512), nn.MSELoss()"),
    "an empty dataset": returning("nn.Linear(8, 1), data(0), loss"),
    "shapes that do not match": returning("nn.Linear(9, 1), data(512), loss"),
    "a model that does not fit": returning("nn.Linear(10**8, 10**8), data(512), loss"),
    "a budget that is too small": returning(GOOD),
    "no PyTorch in the script's Python": script("import torch\n")._replace(
        prepare=lambda folder: venv.create(folder / "other", symlinks=True)
    ),
    "a script that never imports torch": script("print('hello')\n"),
    "a script that never trains": script("import torch\nprint(torch.nn.Linear(3, 1)(torch.ones(3)))\n"),
    "a script that ends at once": script("import sys\nsys.exit('usage: train.py --data FOLDER')\n"),
    "a script that fails": script("import torch\nopen('data.csv')\n"),
}


def rows() -> dict[str, Row]:
    """The guide's rows, each under its first cell."""
    cells = [line.strip("| ").split(" | ") for line in text_of(PAGE).splitlines() if "| `autotune" in line]
    return {wrong: Row(wrong, typed.strip("`"), printed, int(status)) for wrong, typed, printed, status in cells}


def pattern(printed: str) -> str:
    """A regular expression for a message of the guide: a terminal breaks lines anywhere."""
    return "error:" + ".*?".join(re.escape("".join(part.split())) for part in printed.split("…")) + "$"


def contents(folder: Path) -> set[str]:
    """All that lies in a folder but for temporary files, and what Python keeps of modules."""
    return {path.name for path in folder.rglob("*") if "tmp" not in path.parts and "__pycache__" not in path.parts}


def test_every_row_is_tried() -> None:
    """The guide holds what is tried here, and nothing else."""
    assert rows().keys() == FAST.keys() | SLOW.keys()


def check(wrong: str, case: Case, folder: Path) -> None:
    """Types a row's command, and looks at all that comes of it."""
    row = rows()[wrong]
    for name, text in case.files.items():
        (folder / name).write_text(text)
    words = [sys.executable if word == "python" else word for word in shlex.split(row.typed)[1:]]
    temporary_of(folder)
    case.prepare(folder)
    before = contents(folder)
    done = Command(words, folder, case.program, columns=COLUMNS).finish()
    folder.chmod(0o755)
    assert done.status == row.status, done.err
    assert re.search(pattern(row.printed), "".join(done.err.split())), done.err
    assert len(done.err.splitlines()) <= MOST_LINES, done.err
    assert done.left == ()
    assert contents(folder) == before
    assert "site-packages" not in done.err


@pytest.mark.parametrize("wrong", FAST)
def test_what_is_wrong_is_said_at_once(wrong: str, tmp_path: Path) -> None:
    """As the guide has it, before anything is imported."""
    if FAST[wrong].program[0] == AS_OTHERS[0] and shutil.which(AS_OTHERS[0]) is None:
        pytest.skip("root may write everywhere, and setpriv is not here")
    check(wrong, FAST[wrong], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", SLOW)
def test_what_is_wrong_is_said_in_seconds(wrong: str, tmp_path: Path) -> None:
    """Once torch is imported, as the guide has it."""
    check(wrong, SLOW[wrong], tmp_path)
