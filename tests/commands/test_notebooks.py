"""`autotune.tune` in a real kernel: functions, data and classes of cells, interruption, restart, errors."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.results.result import read_result
from tests.notebook_kernel import Notebook, texts
from tests.pages import block
from tests.processes import budget, has_measured

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("notebook")]

GUIDE = "docs/guides/notebooks.md"
IMPORTS = "import torch\nfrom torch import nn\nfrom torch.nn import functional\nimport autotune"
DATA = (
    "features, labels = torch.randn(512, 16), torch.randint(0, 4, (512,))\n"
    "dataset = torch.utils.data.TensorDataset(features, labels)"
)
NET = (
    "class Net(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.layers = nn.Sequential(nn.Linear(16, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))\n"
    "    def forward(self, x):\n"
    "        return scaled(self.layers(x))\n"
)
HELPERS = "WIDTH = 32\ndef scaled(x):\n    return x * 1.0"
BUILD = (
    "def make(dataset, batch_size):\n"
    "    def build():\n"
    "        def loss(model, batch):\n"
    "            return functional.cross_entropy(model(batch[0]), batch[1])\n"
    "        return autotune.Workload(Net(), dataset, loss, batch_size=batch_size)\n"
    "    return build\n"
    "build = make(dataset, 32)"
)
CELLS = (IMPORTS, DATA, HELPERS, NET, BUILD)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """One kernel for all tests, with a `build` that closes over data and uses a class and functions of other cells."""
    with Notebook(tmp_path_factory.mktemp("notebook")) as opened:
        for cell in CELLS:
            assert opened.run(cell) == []
        yield opened


@pytest.fixture(scope="module")
def tuned(notebook: Notebook) -> list[dict[str, Any]]:
    """What the guide's cell shows, which tunes."""
    cell, options = block(GUIDE, "autotune.tune(build, budget"), f"budget={budget(12)!r}, out='cell.json'"
    assert cell.count('budget="10m"') == 1
    return notebook.run(cell.replace('budget="10m"', f"{options}, pin={{'compile_mode': None}}"))


def shown(outputs: list[dict[str, Any]], kind: str) -> list[str]:
    """Everything of a kind of content that was displayed."""
    return ["".join(output["data"][kind]) for output in outputs if kind in output.get("data", {})]


def test_a_function_of_a_cell_is_tuned_with_all_that_it_closes_over(
    notebook: Notebook, tuned: list[dict[str, Any]]
) -> None:
    """Its data, a class and functions of other cells; under a name that no kernel's bytes are part of."""
    assert not [output for output in tuned if output["output_type"] == "error"], texts(tuned)
    result = read_result(notebook.folder / "cell.json")
    assert result.workload.target == "notebook:make.<locals>.build"
    assert result.workload.samples == 512
    assert result.search.outcomes["ok"] >= 2
    assert notebook.left() == []


def test_progress_is_a_widget(tuned: list[dict[str, Any]]) -> None:
    """The terminal's display, which goes when it is done."""
    assert shown(tuned, "application/vnd.jupyter.widget-view+json")


def test_a_result_shows_itself_as_the_reports_first_screen(notebook: Notebook, tuned: list[dict[str, Any]]) -> None:
    """In HTML, and for those without in one line."""
    outputs = notebook.run("result")
    (html,), (text,) = shown(outputs, "text/html"), shown(outputs, "text/plain")
    assert "Before and after" in html
    assert "confirmed speed-up" in html
    assert "make.&amp;lt;locals" in html  # escaped as a page, and again inside the frame
    assert text.startswith("<autotune result: notebook:make.<locals>.build")
    assert "cell.json" in text


def test_a_result_knows_where_it_lies(notebook: Notebook, tuned: list[dict[str, Any]]) -> None:
    """`autotune.load` takes its path, and it is the model that `autotune.load` reads."""
    outputs = notebook.run(
        "from autotune.results.result import Result, read_result\n"
        "print(isinstance(result, Result), read_result(result.path).best == result.best, result.page.is_file())\n"
        "model = nn.Linear(16, 4); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        f"{block(GUIDE, 'autotune.load(result.path)')}\n"
        "print(tuned.config == result.best.config)"
    )
    printed = [
        output for output in outputs if output.get("name") == "stdout"
    ]  # a loop not prepared in full is warned of
    assert texts(printed).split() == ["True"] * 4, texts(outputs)


def test_a_target_in_a_file_is_tuned_as_by_the_command(notebook: Notebook) -> None:
    """By its name, from the kernel's working directory; the display is left empty when asked to."""
    (notebook.folder / "train.py").write_text("\n".join(CELLS))
    how = f"budget={budget(10)!r}, only=['cudnn_benchmark'], out='named.json', quiet=True"  # the baseline alone
    outputs = notebook.run(f"autotune.tune('train:build', {how}).status")
    assert shown(outputs, "text/plain") == ["'complete'"], texts(outputs)
    assert read_result(notebook.folder / "named.json").workload.target == "train:build"
    assert not shown(outputs, "application/vnd.jupyter.widget-view+json")


@pytest.fixture(scope="module")
def early(notebook: Notebook) -> list[dict[str, Any]]:
    """What a tuning tells that is interrupted once it has measured something."""
    journal = notebook.folder / "early.journal"
    cell = "early = autotune.tune(build, budget='10m', out='early.json')"
    return notebook.interrupted(cell, lambda: has_measured(journal))


def test_interrupting_the_kernel_returns_the_best_so_far(notebook: Notebook, early: list[dict[str, Any]]) -> None:
    """As Ctrl-C does in a terminal; the kernel lives on, and no process of the tuning does."""
    assert not [output for output in early if output["output_type"] == "error"], texts(early)
    assert texts(notebook.run("early.status, early.stopped_by")).strip() == "('partial', 'interrupted')"
    assert read_result(notebook.folder / "early.json").status == "partial"
    assert notebook.left() == []


@pytest.mark.usefixtures("early")
def test_an_interrupted_study_goes_on_in_a_new_kernel(notebook: Notebook) -> None:
    """The workload is the same one to it, though its bytes are not."""
    notebook.restart()
    for cell in (IMPORTS, "import sys, random", *CELLS):  # imported in another order, at other addresses
        notebook.run(cell)
    outputs = notebook.run(
        f"later = autotune.tune(build, budget={budget(14)!r}, out='early.json', resume=True)\n"
        "print(later.search.resumed_bursts > 0, later.status)"
    )
    assert "True complete" in texts(outputs)


def test_a_restart_in_the_middle_leaves_nothing(notebook: Notebook) -> None:
    """Processes and the file of the function end with the kernel."""
    notebook.run(
        "import threading\nthreading.Thread(target=lambda: autotune.tune(build, budget='10m', out='lost.json')).start()"
    )
    while not has_measured(notebook.folder / "lost.journal"):
        time.sleep(0.1)
    notebook.restart()
    assert notebook.left() == []
    for cell in CELLS:
        notebook.run(cell)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        ("autotune.tune(build, budget='soon')", "UsageError", "expected a duration such as 90s, 10m or 1h30m"),
        ("autotune.tune('nowhere:build', budget='30s')", "TargetError", "there is no module 'nowhere'"),
        ("autotune.tune(lambda: 1 / 0, budget='30s')", "WorkloadError", "ZeroDivisionError: division by zero"),
        ("autotune.tune(build, budgets='30s')", "TypeError", "did you mean 'budget'?"),
        ("autotune.tune(nn.Linear(2, 2), budget='30s')", "TargetError", "got a Linear"),
    ],
)
def test_what_is_wrong_is_raised_with_the_commands_sentence(
    notebook: Notebook, call: str, error: str, words: str
) -> None:
    """As Python's exceptions, never an exit."""
    (output,) = [one for one in notebook.run(call) if one["output_type"] == "error"]
    assert output["ename"] == error
    assert words in re.sub(r"\x1b\[[0-9;]*m", "", output["evalue"])


def test_without_widgets_progress_is_in_the_output(notebook: Notebook) -> None:
    """In plain lines, as in a log."""
    notebook.run("import sys; hidden = sys.modules.get('ipywidgets'); sys.modules['ipywidgets'] = None")
    outputs = notebook.run("autotune.tune(lambda: 1 / 0, budget='30s')")
    notebook.run("sys.modules['ipywidgets'] = hidden")
    assert "importing …" in texts(outputs)
    assert not shown(outputs, "application/vnd.jupyter.widget-view+json")


def test_what_was_told_to_torch_in_the_notebook_holds_in_bursts(notebook: Notebook) -> None:
    """Threads are part of what one trains with today."""
    notebook.run("torch.set_num_threads(1)")
    notebook.run(
        "def told():\n"
        "    assert torch.get_num_threads() == 1, torch.get_num_threads()\n"
        "    raise RuntimeError('one thread')\n"
    )
    outputs = notebook.run("autotune.tune(told, budget='30s')")
    assert "one thread" in texts(outputs)


def test_another_folder_is_the_modules_place_too(notebook: Notebook, tmp_path: Path) -> None:
    """What the kernel's path finds, the bursts find."""
    (tmp_path / "elsewhere.py").write_text("def fail():\n    raise RuntimeError('found elsewhere')\n")
    notebook.run(f"import sys; sys.path.append({str(tmp_path)!r}); import elsewhere")
    outputs = notebook.run("autotune.tune(lambda: elsewhere.fail(), budget='30s')")
    assert "found elsewhere" in texts(outputs)
