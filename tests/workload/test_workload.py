"""What leads to a workload, and every mistake on the way: one sentence that names the target and the remedy."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.errors import TargetError, WorkloadError
from autotune.workload.target import check_signature, import_target, load_workload
from autotune.workload.user_errors import user_trace
from tests.messages import told

Write = Callable[..., Path]
BUILD = """
    from tests.workloads import mistakes

    def build(batch_size=8):
        return mistakes.workload(batch_size=batch_size)
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes modules into an empty working directory; afterwards they are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write_module(name: str, text: str = BUILD) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    yield write_module
    for name, module in list(sys.modules.items()):
        if name not in before and str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_module_in_the_working_directory_is_found(write: Write) -> None:
    """`train:build` is a module beside the person, as under uvicorn."""
    write("train_here.py")
    assert load_workload("train_here:build").batch_size == 8


def test_an_attribute_may_be_dotted(write: Write) -> None:
    """A build may be a method of a class."""
    write(
        "train_class.py",
        """
        from tests.workloads import mistakes

        class Task:
            @staticmethod
            def build():
                return mistakes.workload()
        """,
    )
    assert load_workload("train_class:Task.build").batch_size == 8


def test_a_path_is_imported_from_its_own_folder(write: Write) -> None:
    """`scripts/train.py:build` finds the modules beside the script, as python itself would."""
    write("scripts/train_beside.py", "from settings_beside import SIZE\n" + textwrap.dedent(BUILD))
    write("scripts/settings_beside.py", "SIZE = 4")
    for path in ("scripts/train_beside.py", "./scripts/train_beside.py", "scripts/../scripts/train_beside.py"):
        assert load_workload(f"{path}:build").batch_size == 8


def test_a_path_into_a_package_is_imported_as_part_of_it(write: Write) -> None:
    """A file with relative imports works by its path: the folders with an `__init__.py` are its package."""
    write("lab/__init__.py", "")
    write("lab/vision/__init__.py", "")
    write("lab/sizes.py", "SIZE = 4")
    write("lab/vision/train.py", "from ..sizes import SIZE\n" + textwrap.dedent(BUILD))
    assert import_target("lab/vision/train.py:build").__module__ == "lab.vision.train"


def test_the_path_of_a_package_is_the_package(write: Write) -> None:
    """`studio/__init__.py:build` is the module `studio`, and runs once."""
    write("studio/__init__.py")
    assert import_target("studio/__init__.py:build").__module__ == "studio"


@pytest.mark.parametrize("target", ["train", ":build", "train:", "", ".train:build"])
def test_a_target_of_another_form_is_told(target: str) -> None:
    """The form that is expected is shown with what came."""
    message, _ = told(TargetError, lambda: import_target(target))
    assert "module:function" in message
    assert repr(target) in message


@pytest.mark.parametrize(
    ("target", "missing"),
    [
        ("nowhere_at_all:build", "nowhere_at_all"),
        ("nowhere_at_all.train:build", "nowhere_at_all"),
        ("json.nowhere:build", "json.nowhere"),
        ("math.nowhere:build", "math.nowhere"),
        ("folder/train:build", "folder/train"),
    ],
)
def test_a_missing_module_is_told(write: Write, tmp_path: Path, target: str, missing: str) -> None:
    """What is missing is named, with the folder that was looked in, and what to do."""
    message, _ = told(TargetError, lambda: import_target(target))
    assert message.startswith(repr(target))
    assert f"no module {missing!r} in {tmp_path}" in message
    assert "folder/train.py:build" in message


def test_a_missing_file_is_told(write: Write, tmp_path: Path) -> None:
    """A path form names the file that is not there."""
    message, _ = told(TargetError, lambda: import_target("lost/train.py:build"))
    assert f"there is no {tmp_path / 'lost' / 'train.py'}" in message


def test_a_file_name_with_a_dot_is_told(write: Write) -> None:
    """Such a file cannot be imported, and the workers of a loader could not find it either."""
    write("train.v2.py")
    message, _ = told(TargetError, lambda: import_target("train.v2.py:build"))
    assert "'train.v2' cannot be imported" in message
    assert "rename" in message


def test_a_file_name_that_is_taken_is_told(write: Write) -> None:
    """A script named like an imported module is not mistaken for it."""
    write("json.py")
    message, _ = told(TargetError, lambda: import_target("json.py:build"))
    assert "'json' already belongs to" in message
    assert "rename json.py" in message


def test_a_missing_attribute_is_told_with_what_there_is(write: Write) -> None:
    """The callables that the module defines are listed, but not those that it imports."""
    path = write(
        "train_typo.py",
        """
        from pathlib import Path
        from torch.utils.data import Dataset

        class Scans(Dataset):
            pass

        def build():
            pass

        def _private():
            pass
        """,
    )
    message, _ = told(TargetError, lambda: import_target("train_typo:biuld"))
    assert message == (
        f"'train_typo:biuld': expected a function 'biuld' in {path}, which defines Scans, build; write one, or name "
        "another with --model"
    )


def test_an_attribute_of_a_number_is_told(write: Write) -> None:
    """Values without attributes of their own are no different."""
    write("train_number.py", "EPOCHS = 3")
    message, _ = told(TargetError, lambda: import_target("train_number:EPOCHS.build"))
    assert "a function 'build'" in message


@pytest.mark.parametrize(
    ("value", "words"),
    [("3", "an int"), ("mistakes.workload()", "a Workload"), ("mistakes.model()", "a Linear"), ("None", "None")],
)
def test_what_cannot_be_called_is_told(write: Write, value: str, words: str) -> None:
    """A build that is no function, a model that can be called included, is named by what it is."""
    write("train_value.py", f"from tests.workloads import mistakes\nbuild = {value}")
    message, _ = told(TargetError, lambda: import_target("train_value:build"))
    assert message.startswith(f"'train_value:build': expected a function that returns a Workload, got {words}")
    assert "def build():" in message


def test_a_module_that_raises_is_the_users_error(write: Write) -> None:
    """Their frames are shown, from their module down, and nobody else's."""
    write("helper_raises.py", "def half(number):\n    return number / 0")
    write("train_raises.py", "import helper_raises\nhelper_raises.half(1)")
    message, trace = told(WorkloadError, lambda: import_target("train_raises:build"))
    assert message == (
        "'train_raises:build': importing 'train_raises' failed: "
        "ZeroDivisionError: division by zero; fix it and run again"
    )
    assert trace is not None
    shown = [line.strip().split(", line")[0] for line in trace.splitlines() if not line.strip().startswith("~")]
    helper, module = (f'File "{Path.cwd() / name}"' for name in ("helper_raises.py", "train_raises.py"))
    assert [line for line in shown if "^" not in line] == [
        module, "helper_raises.half(1)", helper, "return number / 0", "ZeroDivisionError: division by zero",
    ]  # fmt: skip


def test_a_missing_dependency_is_not_a_missing_target(write: Write) -> None:
    """A package that the module needs is the user's to install: exit status 1, with their import line."""
    write("train_needs.py", "import nowhere_at_all.layers")
    message, trace = told(WorkloadError, lambda: import_target("train_needs:build"))
    assert "No module named 'nowhere_at_all'" in message
    assert "import nowhere_at_all.layers" in (trace or "")


def test_a_syntax_error_is_shown_where_it_is(write: Write) -> None:
    """The file, the line and the text of the mistake."""
    path = write("train_syntax.py", "x = 1\ndef build(:\n    pass")
    message, trace = told(WorkloadError, lambda: import_target("train_syntax:build"))
    assert "SyntaxError: " in message
    assert f'File "{path}", line 2' in (trace or "")
    assert "def build(:" in (trace or "")


def test_a_module_that_exits_is_told(write: Write) -> None:
    """A script without a main guard is not the end of autotune."""
    write("train_exits.py", "import sys\nsys.exit(3)")
    message, trace = told(WorkloadError, lambda: import_target("train_exits:build"))
    assert "ended the process: SystemExit: 3" in message
    assert '__name__ == "__main__"' in message
    assert "sys.exit(3)" in (trace or "")


@pytest.mark.parametrize("text", ["raise KeyboardInterrupt", "def build():\n    raise KeyboardInterrupt"])
def test_an_interruption_is_not_swallowed(write: Write, text: str) -> None:
    """Ctrl-C while the user's code runs is an interruption, not a mistake of theirs."""
    write("train_interrupted.py", text)
    with pytest.raises(KeyboardInterrupt):
        load_workload("train_interrupted:build")


def test_parameters_reach_the_build(write: Write) -> None:
    """What `--explore` gives is passed as keyword arguments."""
    write("train_explored.py")
    assert load_workload("train_explored:build", {"batch_size": 4}).batch_size == 4


def test_a_build_may_take_any_keyword(write: Write) -> None:
    """``**kwargs`` takes every parameter."""
    write(
        "train_any.py",
        "from tests.workloads import mistakes\ndef build(**changes):\n    return mistakes.workload(**changes)",
    )
    assert load_workload("train_any:build", {"batch_size": 4}).batch_size == 4


@pytest.mark.parametrize("signature", ["width", "*, width", "width, /"])
def test_an_argument_without_default_is_told(write: Write, signature: str) -> None:
    """`build()` must run without arguments: the one in the way is named."""
    write("train_argument.py", f"def build({signature}):\n    pass")
    message, _ = told(TargetError, lambda: load_workload("train_argument:build"))
    assert message.startswith("train_argument:build needs the argument 'width'")
    assert "give it a default" in message


@pytest.mark.parametrize(
    ("signature", "takes"), [("width=8, *, depth=2", "width, depth"), ("", "none"), ("x=1, /", "none")]
)
def test_an_unknown_parameter_is_told(write: Write, signature: str, takes: str) -> None:
    """What `build` takes by keyword is listed."""
    write("train_unknown.py", f"def build({signature}):\n    pass")
    message, _ = told(TargetError, lambda: load_workload("train_unknown:build", {"x": 256}))
    assert message == f"train_unknown:build takes no argument 'x'; it takes {takes}"


@pytest.mark.parametrize(("default", "fits"), [("32", False), ("0.5", False), ("True", False), ("'small'", True)])
def test_a_text_for_a_number_is_told(write: Write, default: str, fits: bool) -> None:
    """Before `build` runs: it would fail in the middle of the search, or train something else."""
    write("train_width.py", f"def build(width={default}):\n    pass")
    build = import_target("train_width:build")
    explored = {"width": (32, 0.5, None, "abc")}
    if fits:
        check_signature(build, "train_width:build", explored)
        return
    message, _ = told(TargetError, lambda: check_signature(build, "train_width:build", explored))
    expected = f"expected values like its default {default} for the argument 'width', got 'abc'"
    assert message == f"train_width:build: {expected}; pass others"


def test_a_build_that_raises_shows_the_users_frames_only(write: Write) -> None:
    """The call that failed inside torch is cut off; the line of theirs that led there is the last."""
    write(
        "train_shapes.py",
        """
        import torch

        def build():
            return torch.nn.Linear(4, 2)(torch.ones(3, 5))
        """,
    )
    message, trace = told(WorkloadError, lambda: load_workload("train_shapes:build"))
    assert message.startswith("train_shapes:build raised: RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert trace is not None
    assert trace.count('File "') == 1
    assert "torch.nn.Linear(4, 2)(torch.ones(3, 5))" in trace


def test_a_long_error_becomes_one_short_sentence(write: Write) -> None:
    """However many lines an error has, the message is one; the trace keeps them."""
    write(
        "train_pydantic.py",
        """
        from pydantic import BaseModel, Field

        class Settings(BaseModel):
            batch_size: int = Field(ge=1)
            num_workers: int

        def build():
            return Settings(batch_size=0, num_workers="many" * 200)
        """,
    )
    message, trace = told(WorkloadError, lambda: load_workload("train_pydantic:build"))
    assert "2 validation errors for Settings batch_size Input should be greater than or equal to 1" in message
    assert len(message) < 700
    assert "num_workers" in (trace or "")


def test_frames_of_other_packages_are_shown_when_they_are_all(write: Write) -> None:
    """A workload that is itself an installed package is not left without a trace."""
    path = write("site-packages/zoo.py", "raise ValueError('no food')")
    _, trace = told(WorkloadError, lambda: import_target("site-packages/zoo.py:build"))
    assert f'File "{path}", line 1' in (trace or "")


def test_frames_of_other_packages_are_hidden_behind_the_users(write: Write) -> None:
    """What their code called is not theirs to fix: the trace ends in their own line."""
    write("site-packages/zoo_food.py", "def feed():\n    raise ValueError('no food')")
    write("train_zoo.py", "import sys\nsys.path.append('site-packages')\nimport zoo_food\nzoo_food.feed()")
    _, trace = told(WorkloadError, lambda: import_target("train_zoo:build"))
    assert [line.strip() for line in (trace or "").splitlines()[1:]] == ["zoo_food.feed()", "ValueError: no food"]


def test_an_error_without_frames_of_the_user_has_no_trace() -> None:
    """Where none of their code ran there is nothing to show."""
    assert user_trace(ValueError("from nowhere")) is None
