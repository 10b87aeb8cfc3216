"""A setting is changed where it is in force: what only looks like its place, or decides more than it, stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.scripts.patch import patch_of
from tests.scripts.patching import changes, written

RESULT = Path("results/here/train.json")
SCRIPT = """import argparse
import torch
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("-j", "--workers", type=int, default=0)
args = parser.parse_args()
WORKERS = 0
loader = DataLoader(data, batch_size=32, ARGUMENTS)  # its comment stays
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("bound", "arguments", "best", "kept", "changed"),
    [
        (
            "use_cuda = torch.cuda.is_available(); device = 'cuda' if use_cuda else 'cpu'",
            "pin_memory=use_cuda",
            {"pin_memory": True},
            "use_cuda = torch.cuda.is_available(); device = 'cuda' if use_cuda else 'cpu'",
            "pin_memory=True)",
        ),
        (
            "N = 0; print(-N)",
            "num_workers=N",
            {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True},
            "N = 2; print(-N)",
            "num_workers=N, prefetch_factor=4 if N > 0 else None, persistent_workers=N > 0)",
        ),
        (
            "N = 0; pool = Pool(N)",
            "num_workers=N",
            {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True},
            "N = 0; pool = Pool(N)",
            "num_workers=2, prefetch_factor=4, persistent_workers=True)",
        ),
        (
            "N = 0; test = Loader(other, num_workers=int(N))",
            "num_workers=N",
            {"num_workers": 2},
            "N = 2; test = Loader(other, num_workers=int(N))",
            "num_workers=N)",
        ),
    ],
    ids=["the device", "told alone", "a pool", "the same argument"],
)
def test_a_variable_that_decides_more_than_the_setting_stays(
    bound: str, arguments: str, best: dict[str, Any], kept: str, changed: str
) -> None:
    """The value stands in the call then, and what needs workers does not ask the variable for them."""
    source = SCRIPT.replace("ARGUMENTS", arguments).replace("WORKERS = 0", bound)
    patch = patch_of(written(source.encode(), best), RESULT)
    text = patch.files[0].after.decode()
    assert patch.why_whole is None
    assert f"\n{kept}\n" in text
    assert f"batch_size=32, {changed}  # its comment stays" in text


@pytest.mark.parametrize(
    ("elsewhere", "is_in_place"),
    [
        ("pool = Pool(args.workers)", False),
        ("if args.workers > 0: start()", False),
        ("print('workers:', args.workers)", True),
        ("args.workers = min(args.workers, 8) if ranks else args.workers", False),
        ("if ranks: args.workers = args.workers // ranks", True),
        ("test = Loader(other, num_workers=args.workers)", True),
    ],
)
@pytest.mark.parametrize("argv", [("train.py",), ("train.py", "-j0")], ids=["default", "typed"])
def test_an_option_that_decides_more_than_the_setting_is_left_alone(
    elsewhere: str, is_in_place: bool, argv: tuple[str, ...]
) -> None:
    """Neither its default is changed then, nor is anybody told to pass another value."""
    source = SCRIPT.replace("ARGUMENTS", "num_workers=args.workers").replace("WORKERS = 0", elsewhere)
    result = written(source.encode(), {"num_workers": 2}, argv=argv)
    patch = patch_of(result, RESULT)
    assert (patch.why_whole is None, bool(patch.hints)) == (is_in_place, is_in_place and len(argv) > 1)


def test_an_option_whose_other_use_finds_no_change_is_changed() -> None:
    """Workers persist as they did, whether there are two or four."""
    source = SCRIPT.replace("ARGUMENTS", "num_workers=args.workers, persistent_workers=args.workers > 0")
    source = source.replace("default=0", "default=2")
    result = written(source.encode(), {"num_workers": 4}, before={"num_workers": 2, "persistent_workers": True})
    assert patch_of(result, RESULT).why_whole is None


@pytest.mark.parametrize(
    ("imports", "statement", "best", "changed"),
    [
        ("import numba", "numba.set_num_threads(8)", {"num_threads": 2}, "torch.set_num_threads(2)"),
        ("import torch as th", "th.set_num_threads(8)", {"num_threads": 2}, "th.set_num_threads(2)"),
        ("from torch import set_num_threads as s", "s(8)", {"num_threads": 2}, "s(2)"),
        (
            "import torch.backends.cudnn as cudnn",
            "cudnn.benchmark = False",
            {"cudnn_benchmark": True},
            "cudnn.benchmark = True",
        ),
        (
            "from torch.backends import cudnn",
            "cudnn.benchmark = False",
            {"cudnn_benchmark": True},
            "cudnn.benchmark = True",
        ),
        (
            "import numba",
            "settings.benchmark = False",
            {"cudnn_benchmark": True},
            "torch.backends.cudnn.benchmark = True",
        ),
    ],
    ids=[
        "numba's",
        "another name",
        "imported itself",
        "module by name",
        "module from its package",
        "no setting of torch's",
    ],
)
def test_the_statement_that_torch_obeys_is_the_one_that_is_changed(
    imports: str, statement: str, best: dict[str, Any], changed: str
) -> None:
    """Names are followed through the script's imports; a new statement is added where it has none."""
    source = SCRIPT.replace("import argparse", f"import argparse\n{imports}").replace("WORKERS = 0", statement)
    patch = patch_of(written(source.replace("ARGUMENTS", "").encode(), best), RESULT)
    assert patch.why_whole is None
    assert f"+{changed}" in changes(patch)


@pytest.mark.parametrize(
    ("statement", "best", "why"),
    [
        ("torch.backends.cudnn.benchmark = other = False", {"cudnn_benchmark": True}, "in more places than one"),
        (
            "torch.backends.cudnn.set_flags(False, False)",
            {"cudnn_benchmark": True},
            "is set by backends.cudnn.set_flags",
        ),
        ("torch.backends.cuda.matmul.allow_tf32 = False", {"precision": "tf32"}, "cuda.matmul.allow_tf32"),
        ("helper().set_num_threads(1)", {"num_threads": 2}, "may be set by helper().set_num_threads()"),
    ],
)
def test_what_torch_is_told_in_other_words_is_left_to_the_one_line(
    statement: str, best: dict[str, Any], why: str
) -> None:
    """A line below the imports would come before it, and be undone."""
    source = SCRIPT.replace("WORKERS = 0", statement).replace("ARGUMENTS", "")
    patch = patch_of(written(source.encode(), best), RESULT)
    assert why in (patch.why_whole or "")


@pytest.mark.parametrize(
    ("imports", "call", "is_changed"),
    [
        ("import lightning\nfrom mine import Trainer", "Trainer(1)", False),
        ("import lightning\nfrom transformers import Trainer", "Trainer(1)", False),
        ("import lightning as L", "L.Trainer(1)", True),
        ("from pytorch_lightning import Trainer as T", "T(1)", True),
        (
            "try:\n    from lightning import Trainer\nexcept ImportError:\n    from pytorch_lightning import Trainer",
            "Trainer(1)",
            True,
        ),
    ],
    ids=["the script's own", "another package's", "by its module", "by another name", "one of two"],
)
def test_a_framework_is_told_only_by_a_class_of_its_own(imports: str, call: str, is_changed: bool) -> None:
    """Another class of that name would refuse the argument, or take it for something else."""
    source = f"{imports}\ntrainer = {call}\nloader = DataLoader(data, batch_size=32)\n"
    patch = patch_of(written(source.encode(), {"precision": "bf16"}), RESULT)
    assert ('precision="bf16-mixed"' in patch.diff.decode()) is is_changed
    assert (patch.why_whole is None) is is_changed


@pytest.mark.parametrize("old", ["results/old.json", "results/here/train.json"], ids=["another", "the same"])
def test_a_script_that_applies_a_result_already_applies_the_new_one_instead(old: str) -> None:
    """It was measured without that line, which would overrule whatever is changed below."""
    source = SCRIPT.replace("ARGUMENTS", "num_workers=0")
    content = source.replace("import argparse", f'import autotune; autotune.apply("{old}")\nimport argparse').encode()
    patch = patch_of(written(content, {"num_workers": 2}), RESULT)
    assert patch.why_whole == "the script had such a line already"
    line = 'import autotune; autotune.apply("{}")'
    expected = [f"-{line.format(old)}", f"+{line.format(RESULT)}"]
    assert changes(patch) == (expected if old != str(RESULT) else [])


def test_a_script_that_applies_a_result_in_its_own_way_is_left_alone() -> None:
    """Which of its calls is in force cannot be told."""
    content = b"from autotune import apply\napply(choose())\nx = DataLoader(1, num_workers=0)\n"
    with pytest.raises(UsageError, match=r"train\.py calls autotune\.apply already, .*'autotune keep --reverse'"):
        patch_of(written(content, {"num_workers": 2}), RESULT)
