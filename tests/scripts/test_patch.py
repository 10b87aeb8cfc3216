"""What a result changes in a script's source, and that nothing else is changed in it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.patching.diff import names_in, reverted, unified
from autotune.patching.patch import Patch, patch_of
from autotune.patching.source import Source
from autotune.results.result import SourceRecord
from tests.factories import make_result
from tests.scripts.patching import changes, written

RESULT = Path("results/here/train.json")
SCRIPT = """#!/usr/bin/env python
# Licence.
'''What it is.'''
from __future__ import annotations
import argparse
import torch
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("-j", "--workers", type=int, default=0, help="processes")  # of the loader
parser.add_argument("--pin", action="store_true")
args = parser.parse_args()
WORKERS = 0
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # plain
loader = DataLoader(data, batch_size=32, ARGUMENTS)  # its comment stays
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def patched(arguments: str, **best: Any) -> Patch:
    """What is changed where the loader is given some arguments."""
    return patch_of(written(SCRIPT.replace("ARGUMENTS", arguments).encode(), best), RESULT)


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        ("num_workers=0", "loader = DataLoader(data, batch_size=32, num_workers=2)  # its comment stays"),
        ("shuffle=True", "loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=2)  # its comment stays"),
        ("num_workers=args.workers", 'parser.add_argument("-j", "--workers", type=int, default=2, help="processes")'),
        (
            "num_workers=args.workers, extra=DataLoader(other, num_workers=args.workers)",
            'parser.add_argument("-j", "--workers", type=int, default=2, help="processes")',
        ),
        ("**more, num_workers=0", "batch_size=32, **more, num_workers=2)"),
    ],
    ids=["literal", "missing", "option", "option of two loaders", "literal beside a dictionary"],
)
def test_a_setting_is_changed_in_one_line_where_the_script_says_it(arguments: str, changed: str) -> None:
    """One line goes and one comes, whatever the way in which the script gives the value."""
    patch = patched(arguments, num_workers=2)
    removed, added = changes(patch)
    assert patch.why_whole is None
    assert removed[0] == "-"
    assert changed in added


@pytest.mark.parametrize(
    ("arguments", "added"),
    [
        ("num_workers=1", 'multiprocessing_context="spawn"'),
        ("num_workers=args.workers", 'multiprocessing_context="spawn" if args.workers > 0 else None'),
        ("num_workers=1, multiprocessing_context=None", 'multiprocessing_context="spawn"'),
    ],
    ids=["added", "added beside an option", "changed"],
)
def test_how_workers_start_is_written_into_the_loaders_call(arguments: str, added: str) -> None:
    """An argument that torch refuses without workers depends on the option that gives their number."""
    source = SCRIPT.replace("ARGUMENTS", arguments).encode()
    before = {"num_workers": 1}
    patch = patch_of(written(source, {"multiprocessing_context": "spawn"}, before=before), RESULT)
    assert patch.why_whole is None
    assert f"{added})" in changes(patch)[1]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("num_workers=config.n", "is given by config.n, which is no option"),
        ("num_workers=args.pin", "is given by args.pin, which is no option that takes one value"),
        ("num_workers=WORKERS", "is computed by the script (WORKERS)"),
        ("num_workers=int(args.workers)", "is computed by the script (int(args.workers))"),
        ("num_workers=min(0, os.cpu_count())", "is computed by the script (min(0, os.cpu_count()))"),
        ("num_workers=3", "was 0, and the script says 3"),
        ("**more", "may be given by * or ** in the call"),
    ],
)
def test_what_has_no_plain_place_is_applied_by_one_line(arguments: str, why: str) -> None:
    """The line stands below the docstring and the imports of the future, and the patch gives the reason."""
    patch = patched(arguments, num_workers=2)
    assert changes(patch) == ['+import autotune; autotune.apply("results/here/train.json")']
    assert patch.why_whole is not None
    assert why in patch.why_whole
    lines = patch.files[0].after.decode().splitlines()
    assert lines[3:6] == ["from __future__ import annotations", changes(patch)[0][1:], "import argparse"]


@pytest.mark.parametrize(
    ("typed", "option"),
    [
        ("-j0", '"-j", "--workers", type=int, default=0'),
        ("--work", '"--workers", default=0'),
        ("--no-workers", '"--workers", action=argparse.BooleanOptionalAction, default=0'),
    ],
)
def test_an_option_on_the_command_line_is_changed_by_the_one_line(typed: str, option: str) -> None:
    """Its default is not in force."""
    source = SCRIPT.replace("ARGUMENTS", "num_workers=args.workers")
    source = source.replace('"-j", "--workers", type=int, default=0', option).encode()
    patch = patch_of(written(source, {"num_workers": 2}, argv=("train.py", typed)), RESULT)
    assert f"which the command line decides ({typed[:2] if typed == '-j0' else typed})" in (patch.why_whole or "")
    assert patch_of(written(source, {"num_workers": 2}), RESULT).why_whole is None


@pytest.mark.parametrize(
    ("elsewhere", "is_in_place"),
    [
        ("pool = Pool(args.workers)", False),
        ("if args.workers > 0: start()", False),
        ("args.workers = 0", False),
        ("parser.set_defaults(workers=0)", False),
        ("test = DataLoader(other, num_workers=args.workers)", True),
        ("model = Model(num_workers=args.workers)", False),
        ("print(args)", True),
        ("rate = 0.1 * vars(args)['workers']", False),
        ("rate = args.__dict__['workers']", False),
        ("rate = dict(args._get_kwargs())", False),
        ("args.__setattr__('workers', 0)", False),
        ("rate = getattr(args, 'workers')", False),
        ("model = Model(**vars(args))", False),
        ("train(model, args)", False),
        ("options = args", False),
        ("def main(args): print(args.pin)\nmain(args)", True),
        ("def main(args): print(args.pin)\nmain(read())", False),
        ("def main(args): print(args.pin)\nspawn(main)", False),
        ("def main(args): read(args)\nmain(args)", False),
        ("args = parser.parse_args(['--workers', '0'])", False),
        ("args = read(args)", False),
        ("parser = argparse.ArgumentParser(fromfile_prefix_chars='@')", False),
    ],
)
def test_an_option_that_decides_more_than_the_setting_is_left_alone(elsewhere: str, is_in_place: bool) -> None:
    """Its default is changed where it gives that argument only, of any call."""
    source = SCRIPT.replace("ARGUMENTS", "num_workers=args.workers").replace("WORKERS = 0", elsewhere)
    patch = patch_of(written(source.encode(), {"num_workers": 2}), RESULT)
    assert (patch.why_whole is None) == is_in_place


@pytest.mark.parametrize(
    ("parsing", "is_in_place"),
    [
        ("def parse_args():\n    args = parser.parse_args()\n    return args\nargs = parse_args()", True),
        ("def parse_args():\n    return parser.parse_args()\nargs = parse_args()", True),
        ("args, rest = parser.parse_known_args()", False),
        ("args = yaml.safe_load('')", False),
        ("args = parser.parse_args()\nother, rest = parser.parse_known_args()", False),
        ("self.args = parser.parse_args()\nmodel = Net(**vars(self.args))", False),
        ("self.args = parser.parse_args()\nhelper(self.args)", False),
        ("args = parser.parse_args()\nother = parser.parse_args()", False),
        ("args = parser.parse_args()\nfrom settings import args", False),
    ],
)
def test_an_option_is_surely_read_from_the_command_line(parsing: str, is_in_place: bool) -> None:
    """A file of settings, or of words, may decide otherwise."""
    read = "self.args.workers" if "self.args" in parsing else "args.workers"
    source = SCRIPT.replace("ARGUMENTS", f"num_workers={read}").replace("args = parser.parse_args()", parsing)
    patch = patch_of(written(source.encode(), {"num_workers": 2}), RESULT)
    assert (patch.why_whole is None) == is_in_place


def test_an_option_whose_other_use_finds_no_change_is_changed() -> None:
    """Workers persist as they did, whether there are two or four."""
    source = SCRIPT.replace("ARGUMENTS", "num_workers=args.workers, persistent_workers=args.workers > 0")
    source = source.replace("default=0", "default=2")
    result = written(source.encode(), {"num_workers": 4}, before={"num_workers": 2, "persistent_workers": True})
    assert patch_of(result, RESULT).why_whole is None


@pytest.mark.parametrize("given", ["", ", prefetch_factor=None, persistent_workers=False"], ids=["added", "replaced"])
def test_what_needs_workers_is_off_where_an_option_says_that_there_are_none(given: str) -> None:
    """Torch refuses a prefetch factor and persistent workers without any: `--workers 0` must still run."""
    patch = patched(f"num_workers=args.workers{given}", num_workers=2, prefetch_factor=4, persistent_workers=True)
    added = "prefetch_factor=4 if args.workers > 0 else None, persistent_workers=args.workers > 0)"
    assert added in patch.diff.decode()


@pytest.mark.parametrize(
    ("arguments", "is_in_place"),
    [
        ("num_workers=args.workers, prefetch_factor=2", True),
        ("num_workers=4, timeout=0), DataLoader(other, num_workers=4, timeout=9", True),
        ("num_workers=args.workers), DataLoader(other, num_workers=args.workers", True),
        ("num_workers=4, in_order=True", True),
        ("num_workers=4, timeout=9", False),
        ("num_workers=4, **more", False),
        ("num_workers=args.workers), DataLoader(other, num_workers=args.workers, persistent_workers=True", False),
    ],
)
def test_no_loader_is_left_without_workers_that_it_needs(arguments: str, is_in_place: bool) -> None:
    """Torch refuses a timeout, and persistent workers of another loader whose number the same option decides."""
    source = SCRIPT.replace("default=0", "default=4").replace("ARGUMENTS", arguments).encode()
    patch = patch_of(written(source, {"num_workers": 0}, before={"num_workers": 4}), RESULT)
    assert (patch.why_whole is None) == is_in_place
    if not is_in_place:
        assert "num_workers would be 0, and " in (patch.why_whole or "")


def test_what_needs_workers_has_no_place_beside_a_number_that_is_computed() -> None:
    """That number may be zero."""
    source = SCRIPT.replace("ARGUMENTS", "num_workers=number()").encode()
    patch = patch_of(written(source, {"prefetch_factor": 4}, before={"num_workers": 2}), RESULT)
    assert "prefetch_factor needs workers, and the script computes their number" in (patch.why_whole or "")


@pytest.mark.parametrize(
    ("known", "changed"),
    [
        ({}, "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)  # plain"),
        ({"optimizers": (None,)}, None),
    ],
)
def test_an_optimizer_takes_its_form_where_it_is_made(known: Any, changed: str | None) -> None:
    """In a call of the script's own; else by the one line."""
    result = written(SCRIPT.replace("ARGUMENTS", "").encode(), {"optimizer_impl": "fused"}, **known)
    patch = patch_of(result, RESULT)
    if changed is None:
        assert patch.why_whole == "optimizer_impl is given by no call in the script's own files"
    else:
        assert f"+{changed}" in changes(patch)


@pytest.mark.parametrize(
    "best",
    [
        {"num_threads": 2},
        {"cudnn_benchmark": True},
        {"compile_mode": "default"},
        {"memory_format": "channels_last"},
        {"precision": "bf16"},
        {"precision": "tf32"},
    ],
    ids=str,
)
def test_what_no_call_of_the_script_takes_is_applied_by_the_one_line(best: dict[str, Any]) -> None:
    """It alone: what has a place of its own is not written there then."""
    patch = patched("num_workers=0", num_workers=2, **best)
    assert changes(patch) == ['+import autotune; autotune.apply("results/here/train.json")']
    assert patch.why_whole == f"{next(iter(best))} cannot be written in place"


@pytest.mark.parametrize("mode", ["blocks", "cudagraphs"])
def test_a_compile_mode_that_torch_does_not_know_is_no_word_of_transformers(mode: str) -> None:
    """An argument that named it would end the script."""
    patch = patch_of(
        written(b"import transformers\ntransformers.TrainingArguments(1)\n", {"compile_mode": mode}), RESULT
    )
    assert patch.why_whole == "compile_mode cannot be written in place"


@pytest.mark.parametrize(
    ("layout", "after"),
    [
        ("\n    num_workers=0,  # why\n", "\n    num_workers=2,  # why\n    prefetch_factor=4,\n)"),
        ("\n    num_workers=0  # why\n", "\n    num_workers=2,  # why\n    prefetch_factor=4\n)"),
        ("\n    num_workers=(0)", "\n    num_workers=(2),\n    prefetch_factor=4)"),
        ("num_workers=0,", "num_workers=2, prefetch_factor=4,)"),
        ("num_workers=0 \\\n    ", "num_workers=2, prefetch_factor=4 \\\n    )"),
        ("\n    num_workers=0 \\\n    ", "\n    num_workers=2, \\\n    prefetch_factor=4\n    )"),
    ],
    ids=["a comma in the end", "none", "the bracket behind the last", "one line", "joined", "a joined line each"],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_arguments_are_added_as_the_others_stand(layout: str, after: str, newline: str) -> None:
    """A line each where each has one; line endings are the file's."""
    source = SCRIPT.replace("ARGUMENTS", layout).replace("\n", newline).encode()
    patch = patch_of(written(source, {"num_workers": 2, "prefetch_factor": 4}), RESULT)
    assert after.replace("\n", newline).encode() in patch.files[0].after
    assert patch.files[0].after.count(b"\r") == patch.files[0].after.count(b"\n") * (newline == "\r\n")


@pytest.mark.parametrize(("inside", "after"), [("\n", "lr=1\n"), ("  # why\n", "lr=1  # why\n")])
def test_arguments_of_an_empty_call_stand_at_its_bracket(inside: str, after: str) -> None:
    """Not at the beginning of a line."""
    source = Source(f"x = (make)({inside})\n".encode())
    source.add_arguments(source.calls()[0], ["lr=1"])
    assert source.edited().decode() == f"x = (make)({after})\n"


@pytest.mark.parametrize(
    "content",
    [
        b"# -*- coding: latin-1 -*-\nname = 'caf\xe9'; loader = DataLoader('\xe9\xe9', batch_size=32, num_workers=0)\n",
        b"\xef\xbb\xbfloader = DataLoader('\xc3\xa9', batch_size=32, num_workers=0)  # \xe2\x82\xac",
        b"x = 1\x0c\nloader = DataLoader(x, batch_size=32, num_workers=0) # \xc2\x85\n",
    ],
    ids=["latin-1", "a byte order mark and no last line ending", "form feed and next line"],
)
def test_bytes_that_are_not_changed_stay_as_they_are(content: bytes) -> None:
    """Whatever the encoding: places in the source are counted as Python counts them."""
    patch = patch_of(written(content, {"num_workers": 2}), RESULT)
    assert patch.files[0].after == content.replace(b"num_workers=0", b"num_workers=2")


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("last", ["", "end = 1"], ids=["ending", "no ending"])
@pytest.mark.parametrize(
    "tool", [["git", "apply", "{}", "train.diff"], ["patch", "-p1", "--binary", "{}", "-i", "train.diff"]]
)
def test_the_diff_is_taken_by_git_and_by_patch_both_ways(tool: list[str], last: str, newline: str) -> None:
    """`reverted` does the same. Forward it leads to the file that `patch` writes, in reverse to the measured one."""
    source = (SCRIPT.replace("ARGUMENTS", "num_workers=0") + last).replace("\n", newline).encode()
    patch = patch_of(written(source, {"num_workers": 2, "optimizer_impl": "fused"}), RESULT)
    Path("train.diff").write_bytes(patch.diff)
    for options, expected in (([], patch.files[0].after), (["-R"], source)):
        words = [word for part in tool for word in (options if part == "{}" else [part])]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert Path("train.py").read_bytes() == expected
    assert reverted(patch.diff, "train.py", patch.files[0].after) == source
    assert reverted(patch.diff, "train.py", source) is None


def test_an_added_line_that_looks_like_a_header_names_no_file() -> None:
    """As a patch has it that is a part of the file."""
    diff = unified("a.py", b"x\n", b"x\n++ b/z\n")
    assert names_in(diff) == ["a.py"]
    assert reverted(diff, "a.py", b"x\n++ b/z\n") == b"x\n"


@pytest.mark.parametrize("name", ["a b.py", "a\tb.py", "b/b/a.py", "/a.py"])
def test_a_file_of_any_name_is_reverted(name: str) -> None:
    """Also where the name holds what ends it in other diffs."""
    diff = unified(name, b"x\n", b"y\n")
    assert names_in(diff) == [name]
    assert reverted(diff, name, b"y\n") == b"x\n"


def test_hunks_that_shift_lines_are_reverted() -> None:
    """Also of a file that is not the first of a diff, and of one that was empty."""
    before = b"".join(b"%d\n" % number for number in range(60))
    after = b"new\n" + before.replace(b"30\n", b"30\n30.5\n").replace(b"58\n", b"")
    diff = unified("a.py", b"", b"x") + unified("my b.py", before, after)
    assert reverted(diff, "my b.py", after) == before
    assert reverted(diff, "a.py", b"x") == b""


def test_a_script_that_has_changed_since_is_refused() -> None:
    """What it would gain now is not known."""
    result = written(SCRIPT.replace("ARGUMENTS", "num_workers=0").encode(), {"num_workers": 2})
    with Path("train.py").open("a") as file:
        file.write("\n")
    with pytest.raises(UsageError, match=r"train.py has changed since it was measured"):
        patch_of(result, RESULT)
    Path("train.py").unlink()
    with pytest.raises(UsageError, match=r"go to the folder where the script was tuned"):
        patch_of(result, RESULT)


def test_a_result_without_a_script_has_no_patch() -> None:
    """The error says what to do instead."""
    with pytest.raises(UsageError, match=r"load it with autotune\.load"):
        patch_of(make_result(), RESULT)


def test_the_one_line_is_not_written_where_autotune_cannot_be_imported() -> None:
    """The script runs in an environment of its own."""
    result = written(b"x = DataLoader(1, num_workers=f())", {"num_workers": 2}, has_autotune=False)
    with pytest.raises(UsageError, match=r"has no autotune to import; train with 'autotune launch'"):
        patch_of(result, RESULT)


def test_workers_do_not_persist_in_place_where_the_data_may_change() -> None:
    """They would keep the data of the first epoch; under the one line they start again."""
    content = SCRIPT.replace("ARGUMENTS", "num_workers=0").encode()
    best = {"num_workers": 2, "persistent_workers": True}
    assert b"persistent_workers=True" in patch_of(written(content, best), RESULT).diff
    patch = patch_of(written(content, best, may_change_data=True), RESULT)
    assert b"persistent_workers" not in patch.diff
    assert b"autotune.apply" in patch.diff
    assert "persistent_workers would hide from workers" in (patch.why_whole or "")


def test_a_line_that_is_not_known_to_its_end_is_found_by_what_it_makes() -> None:
    """Python 3.10 knows the line of a call only."""
    result = written(SCRIPT.replace("ARGUMENTS", "num_workers=0, extra=int(0)").encode(), {"num_workers": 2})
    script = result.workload.script
    assert script is not None
    assert isinstance(script.source, SourceRecord)
    (site,) = script.source.loaders
    assert site is not None
    source = script.source.model_copy(update={"loaders": (site.model_copy(update={"end": None}),)})
    script = script.model_copy(update={"source": source})
    result = result.model_copy(update={"workload": result.workload.model_copy(update={"script": script})})
    assert "num_workers=2" in changes(patch_of(result, RESULT))[1]


MADE_BY_FUNCTION = b"def make():\n    return DataLoader(1, num_workers=0)\n"


@pytest.mark.parametrize(
    ("content", "in_place"),
    [
        (b"for epoch in range(3):\n    x = DataLoader(1, num_workers=0)\n", False),
        (b"while True:\n    for batch in DataLoader(1, num_workers=0):\n        pass\n", False),
        (MADE_BY_FUNCTION + b"for epoch in range(3):\n    for batch in make():\n        pass\n", False),
        (MADE_BY_FUNCTION + b"def epoch():\n    make()\nwhile True:\n    epoch()\n", False),
        (b"for batch in DataLoader(1, num_workers=0):\n    pass\n", True),
        (MADE_BY_FUNCTION + b"for batch in make():\n    pass\n", True),
        (MADE_BY_FUNCTION + b"x = make()\nwhile True:\n    model.make()\n", True),
        (b"class A:\n    def f(self):\n        x = DataLoader(1, num_workers=0)\nwhile True:\n    a.f()\n", False),
    ],
)
def test_workers_that_persist_have_no_place_in_a_loader_that_is_made_again(content: bytes, in_place: bool) -> None:
    """They would start again with each; the one line lets them persist."""
    patch = patch_of(written(content, {"num_workers": 2, "persistent_workers": True}), RESULT)
    assert (patch.why_whole is None) is in_place
    if not in_place:
        assert patch.why_whole == "persistent_workers is of a loader that is made again and again"


@pytest.mark.parametrize(
    ("imports", "call", "is_changed"),
    [
        ("import lightning\nfrom mine import Trainer", "Trainer(1)", False),
        ("import lightning\nfrom transformers import Trainer", "Trainer(1)", False),
        ("from lightning import Trainer\nclass Trainer:\n    pass", "Trainer(1)", False),
        ("import lightning as L", "L.Trainer(1)", True),
        ("from pytorch_lightning import Trainer as T", "T(1)", True),
        (
            "try:\n    from lightning import Trainer\nexcept ImportError:\n    from pytorch_lightning import Trainer",
            "Trainer(1)",
            True,
        ),
    ],
    ids=[
        "the script's own",
        "another package's",
        "the script's own over it",
        "by its module",
        "by another name",
        "one of two",
    ],
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
    """The source does not show which of its calls is in force."""
    content = b"from autotune import apply\napply(choose())\nx = DataLoader(1, num_workers=0)\n"
    with pytest.raises(UsageError, match=r"train\.py calls autotune\.apply already, .*'autotune patch --reverse'"):
        patch_of(written(content, {"num_workers": 2}), RESULT)


TRAINER = """from transformers import Trainer, TrainingArguments
arguments = TrainingArguments("out", bf16=False)
Trainer(model, arguments, train_dataset=data).train()
"""
OWN_LOADER = """
class Own(Trainer):
    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, batch_size=32, num_workers=0)
"""
OWN_OPTIMIZER = "optimizer = torch.optim.AdamW(model.parameters())\n"
TUNED: dict[str, Any] = {"num_workers": 2, "optimizer_impl": "fused", "precision": "bf16"}
BY_TRAINER = ['optim="adamw_torch_fused"', "dataloader_num_workers=2"]
IN_LOADER = ["        return DataLoader(self.train_dataset, batch_size=32, num_workers=2)"]
IN_OPTIMIZER = ["optimizer = torch.optim.AdamW(model.parameters(), fused=True)"]


@pytest.mark.parametrize(
    ("own", "of_trainer", "elsewhere"),
    [
        ("", BY_TRAINER, []),
        (OWN_LOADER, BY_TRAINER[:1], IN_LOADER),
        (OWN_OPTIMIZER, BY_TRAINER[1:], IN_OPTIMIZER),
        (OWN_LOADER + OWN_OPTIMIZER, [], IN_LOADER + IN_OPTIMIZER),
    ],
    ids=["the Trainer both", "the script the loader", "the script the optimizer", "the script both"],
)
def test_a_framework_is_told_of_what_it_makes_and_of_nothing_else(
    own: str, of_trainer: list[str], elsewhere: list[str]
) -> None:
    """Its arguments have no effect on a loader or an optimizer that the script makes and hands over."""
    patch = patch_of(written((TRAINER + own).encode(), TUNED, optimizer="AdamW"), RESULT)
    assert patch.why_whole is None
    (told, *others) = [line[1:] for line in changes(patch) if line[0] == "+"]
    assert [word for word in BY_TRAINER if word in told] == of_trainer
    assert "bf16=True" in told
    assert others == elsewhere


@pytest.mark.parametrize(
    ("best", "source", "why"),
    [
        ("fused", TRAINER.replace("data)", "data, optimizers=library.optimizers())"), "is given by no call"),
        ("fused", TRAINER.replace("data)", "data, optimizer_cls_and_kwargs=(kind, {}))"), "is given by no call"),
        ("foreach", TRAINER, "is given by no call"),
    ],
    ids=["of a library", "of a class", "foreach, which is the default on a GPU only"],
)
def test_an_optimizer_that_no_word_of_the_trainer_makes_is_changed_by_the_one_line(
    best: str, source: str, why: str
) -> None:
    """The word for it would have no effect, or another one than was measured."""
    patch = patch_of(written(source.encode(), {"optimizer_impl": best}, optimizer="AdamW"), RESULT)
    assert why in (patch.why_whole or "")


@pytest.mark.parametrize(
    ("source", "best", "why"),
    [
        (
            TRAINER.replace("Trainer(", "arguments.bf16 = False\nTrainer("),
            {"precision": "bf16"},
            "bf16 is also set elsewhere in the script",
        ),
        (
            "from lightning import Fabric\nfabric = Fabric('cpu', 'auto', 1, 1, 'bf16-mixed')\n",
            {"precision": "bf16"},
            "precision may be given by position",
        ),
        (
            TRAINER.replace("bf16=False", "dataloader_num_workers=2"),
            {"num_workers": 2},
            "dataloader_num_workers was 0, and the script says 2",
        ),
        (
            TRAINER.replace("bf16=False", "per_device_train_batch_size=16"),
            {"batch_size": 64},
            "per_device_train_batch_size was 32, and the script says 16",
        ),
        (TRAINER.replace("bf16=False", "bf16=True"), {"precision": "bf16"}, "the script already has these settings"),
    ],
    ids=["set again", "by position", "without effect", "of each of two GPUs", "said already"],
)
def test_a_frameworks_argument_that_would_change_nothing_is_not_written(
    source: str, best: dict[str, Any], why: str
) -> None:
    """Nor one that is given twice, which ends the script."""
    patch = patch_of(written(source.encode(), best), RESULT)
    assert patch.why_whole == why
    assert "+import autotune;" in patch.diff.decode()


@pytest.mark.parametrize(
    ("source", "best", "why"),
    [
        (
            "make = partial(DataLoader, num_workers=4)\nloader = make(data)\n",
            {"num_workers": 0},
            "num_workers was 4, which the call does not say",
        ),
        (
            "loader = make(data, batch_sampler=BatchSampler(order, 32, False))\n",
            {"batch_size": 64},
            "batch_size was 32, which the call does not say",
        ),
    ],
    ids=["to the default", "beside a sampler of batches"],
)
def test_what_something_else_has_given_is_changed_by_the_one_line(source: str, best: dict[str, Any], why: str) -> None:
    """An argument of the call would not be written where it is torch's default, or torch would refuse both."""
    result = written(source.encode(), best, before={"num_workers": 4}, loader="make")
    assert patch_of(result, RESULT).why_whole == why


def test_a_function_of_python_that_calls_the_loaders_class_takes_no_argument_of_it() -> None:
    """The call that was recorded is that of ``list``."""
    source = b"loaders = list(map(DataLoader, sets))\n"
    patch = patch_of(written(source, {"num_workers": 2}, loader="list"), RESULT)
    assert "are given in line 1 by list(), which takes no such argument" in (patch.why_whole or "")
