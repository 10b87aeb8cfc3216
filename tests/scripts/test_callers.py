"""A loader whose arguments come by ``**kwargs`` is changed where they are said, so that options go on deciding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.scripts.patch import Patch, patch_of
from tests.scripts.patching import changes, written

RESULT = Path("results/here/train.json")
SCRIPT = """import argparse, functools
from torch.utils.data import DataLoader
parser = argparse.ArgumentParser()
parser.add_argument("-j", "--workers", type=int, default=0)
args = parser.parse_args(ARGV)
more = {"num_workers": 0}
DEFINED
LOADER
"""
CLASS = """class Endless:
    def __init__(self, dataset, **kwargs):
        super(Endless, self).__init__()
        self.loader = DataLoader(dataset, shuffle=True, **kwargs)
def use(loader: Endless) -> Endless:
    return loader if isinstance(loader, Endless) else None"""
FUNCTION = "def make(dataset, **kwargs):\n    return DataLoader(dataset, **kwargs)"
BOTH = """def make(dataset, **kwargs):
    return DataLoader(dataset, shuffle=True, **kwargs), DataLoader(dataset, **kwargs)"""
OVER = '{**kwargs, "num_workers": 2}'
FIRST = f"+    return DataLoader(dataset, shuffle=True, **{OVER}), DataLoader(dataset, **kwargs)"
OPTION = '+parser.add_argument("-j", "--workers", type=int, default=2)'
LINE = '+import autotune; autotune.apply("results/here/train.json")'


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def patched(defined: str, loader: str, *argv: str, **best: Any) -> Patch:
    """What is changed in a script that makes its loader so."""
    content = SCRIPT.replace("DEFINED", defined).replace("LOADER", loader)
    return patch_of(written(content.encode(), best or {"num_workers": 2}, argv=("train.py", *argv)), RESULT)


@pytest.mark.parametrize(
    ("defined", "loader", "added"),
    [
        (CLASS, "Endless([], num_workers=args.workers)", OPTION),
        (FUNCTION, "make([], num_workers=args.workers)", OPTION),
        (FUNCTION, "make([], num_workers=0)", "+make([], num_workers=2)"),
        (FUNCTION, "make([], **more)", '+more = {"num_workers": 2}'),
        (FUNCTION, "make([], batch_size=4)", f"+    return DataLoader(dataset, **{OVER})"),
        (FUNCTION, "", f"+    return DataLoader(dataset, **{OVER})"),
        (BOTH, "make([], num_workers=0)", FIRST),
        (BOTH, "make([])", FIRST),
    ],
    ids=[
        "option, by a class", "option, by a function", "literal", "dictionary", "absent", "called elsewhere",
        "literal for two loaders", "absent of two loaders",
    ],
)  # fmt: skip
def test_what_the_one_call_gives_is_changed_there(defined: str, loader: str, added: str) -> None:
    """Only what it does not give, or gives to others as well, is said over it."""
    patch = patched(defined, loader)
    assert patch.why_whole is None
    assert added in changes(patch)
    assert len(changes(patch)) == 2


@pytest.mark.parametrize(
    ("defined", "loader", "why"),
    [
        (CLASS, "Endless([])\nEndless([], num_workers=args.workers)", "and Endless is called in 2 places, not one"),
        (FUNCTION, "functools.partial(make, num_workers=args.workers)([])", "make is not only called, but used"),
        (CLASS + "\nclass Sub(Endless): pass", "Sub([], num_workers=args.workers)", "Endless is not only called, but"),
        ("@wrapped\n" + FUNCTION, "make([], num_workers=args.workers)", "of make, which is decorated"),
        (FUNCTION + "\n" + FUNCTION, "make([])", "of make, which is the name of other things as well"),
        (
            FUNCTION.replace("    return", "    kwargs.update(more)\n    return"),
            "make([], num_workers=args.workers)",
            "which make reads or changes by itself",
        ),
        ("make = lambda dataset, **kwargs: DataLoader(dataset, **kwargs)", "make([])", "of a lambda"),
        (BOTH, "make([], num_workers=args.workers)", "num_workers is given by **kwargs, which goes to other calls"),
        (BOTH, "make([], **more)", "num_workers is given by **kwargs, which goes to other calls"),
    ],
)
def test_what_several_may_give_is_applied_by_one_line(defined: str, loader: str, why: str) -> None:
    """Said over what is given, an option of the command line would go dead."""
    patch = patched(defined, loader)
    assert changes(patch) == [LINE]
    assert why in str(patch.why_whole)


def test_an_option_that_was_typed_is_told_and_what_needs_workers_follows_it() -> None:
    """The loader is made by any number of workers, none included: prefetching without them would be refused."""
    best = {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True}
    patch = patched(CLASS, "made = Endless([], num_workers=args.workers)", "-j", "0", **best)
    assert patch.hints == ("pass --workers 2",)
    assert patch.why_whole is None
    source = patch.files[0].after.decode().replace("from torch.utils.data import DataLoader", "")
    for typed, wanted in (("0", (0, None, False)), ("3", (3, 4, True))):
        names: dict[str, Any] = {"DataLoader": lambda _, **given: given}
        exec(source.replace("ARGV", f"['-j', '{typed}']"), names)  # noqa: S102 - what stands above
        given = names["made"].loader
        assert (given["num_workers"], given["prefetch_factor"], given["persistent_workers"]) == wanted


def test_a_parameter_of_the_function_is_not_taken_for_one_of_what_it_hands_on() -> None:
    """What the call gives for it never comes to the loader, so that the value is said over the rest."""
    patch = patched(
        FUNCTION.replace("**kwargs)", "pin_memory=None, **kwargs)", 1), "make([], pin_memory=1)", pin_memory=True
    )
    assert '+    return DataLoader(dataset, **{**kwargs, "pin_memory": True})' in changes(patch)
