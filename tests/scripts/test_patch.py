"""What a result changes in a script's source, and that nothing else is changed in it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.results.sites import SourceRecord
from autotune.scripts.diff import reverted, unified
from autotune.scripts.patch import Patch, patch_of
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
more = {"num_workers": 0}
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # plain
loader = DataLoader(data, batch_size=32, ARGUMENTS)  # its comment stays
for x in loader:
\tfor _ in range(1):
\t\tout = model(x)
\t\tout.mean().backward()
"""
HF_SCRIPT = b"from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)\n"


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
            "num_workers=int(args.workers)",
            'parser.add_argument("-j", "--workers", type=int, default=2, help="processes")',
        ),
        ("num_workers=WORKERS", "WORKERS = 2"),
        ("**more", 'more = {"num_workers": 2}'),
        ("**dict(pin_memory=False)", "batch_size=32, **dict(pin_memory=False, num_workers=2))"),
        ("**args.loader", 'batch_size=32, **{**args.loader, "num_workers": 2})'),
        ("num_workers=min(0, os.cpu_count())", "batch_size=32, num_workers=2)"),
    ],
    ids=[
        "literal",
        "missing",
        "option",
        "option as a number",
        "variable",
        "dictionary",
        "call of dict",
        "dictionary elsewhere",
        "computed",
    ],
)
def test_a_setting_is_changed_in_one_line_where_the_script_says_it(arguments: str, changed: str) -> None:
    """One line goes and one comes, whatever the way in which the script gives the value."""
    patch = patched(arguments, num_workers=2)
    removed, added = changes(patch)
    assert patch.why_whole is None
    assert removed[0] == "-"
    assert changed in added


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("num_workers=config.n", "is given by config.n"),
        ("num_workers=args.workers // 2", "is computed by the script (args.workers // 2)"),
        ("num_workers=3", "was 0, and the script says 3"),
        ("**more, **other", "in more than one dictionary"),
        ("num_workers=data", "is given by data, which is not bound once"),
    ],
)
def test_what_has_no_plain_place_is_applied_by_one_line(arguments: str, why: str) -> None:
    """The line stands below the docstring and the imports of the future, and the reason is told."""
    patch = patched(arguments, num_workers=2)
    assert changes(patch) == ['+import autotune; autotune.apply("results/here/train.json")']
    assert patch.why_whole is not None
    assert why in patch.why_whole
    lines = patch.files[0].after.decode().splitlines()
    assert lines[3:6] == ["from __future__ import annotations", changes(patch)[0][1:], "import argparse"]


def test_an_option_that_was_typed_is_a_hint_and_no_edit() -> None:
    """So is a switch, which has no default to change."""
    source = SCRIPT.replace("ARGUMENTS", "num_workers=args.workers, pin_memory=args.pin").encode()
    result = written(source, {"num_workers": 2, "pin_memory": True}, argv=("train.py", "-j0"))
    patch = patch_of(result, RESULT)
    assert (patch.files, patch.hints) == ((), ("pass --workers 2", "pass --pin"))


@pytest.mark.parametrize(
    ("statement", "is_in_place"),
    [
        ("args.workers = 0", False),
        ("if args.workers > 1: args.workers = 1", False),
        ("if ranks: args.workers = 0", True),
    ],
)
def test_an_option_that_the_script_sets_itself_is_changed_only_where_that_was_for_another_reason(
    statement: str, is_in_place: bool
) -> None:
    """Such as workers that are shared out among ranks, of which there is one."""
    source = SCRIPT.replace("ARGUMENTS", "num_workers=args.workers").replace("WORKERS = 0", statement).encode()
    assert (patch_of(written(source, {"num_workers": 2}), RESULT).why_whole is None) == is_in_place


def test_what_transformers_reads_from_the_command_line_is_a_hint() -> None:
    """Its own example scripts make no TrainingArguments, but have them parsed."""
    patch = patch_of(written(HF_SCRIPT, {"num_workers": 2, "precision": "bf16"}), RESULT)
    assert patch.files == ()
    assert sorted(patch.hints) == ["pass --bf16 True", "pass --dataloader_num_workers 2"]


def test_what_needs_workers_is_off_where_an_option_says_that_there_are_none() -> None:
    """Torch refuses a prefetch factor and persistent workers without any: `--workers 0` must still run."""
    patch = patched("num_workers=args.workers", num_workers=2, prefetch_factor=4, persistent_workers=True)
    added = "prefetch_factor=4 if args.workers > 0 else None, persistent_workers=args.workers > 0)"
    assert added in patch.diff.decode()


def test_optimizer_process_model_and_autocast_have_places_of_their_own() -> None:
    """Statements are indented as those around them."""
    patch = patched(
        "shuffle=True", optimizer_impl="fused", num_threads=2, compile_mode="default", memory_format="channels_last",
        precision="bf16",
    )  # fmt: skip
    text = patch.files[0].after.decode()
    assert "SGD(model.parameters(), lr=0.1, fused=True)  # plain\n" in text
    assert "DataLoader\n\ntorch.set_num_threads(2)\n\nparser" in text
    assert "# plain\nmodel.to(memory_format=torch.channels_last)\nmodel.compile()\nloader" in text
    assert (
        '\t\twith torch.autocast("cpu", dtype=torch.bfloat16):\n\t\t\tout = model(x)\n\t\tout = out.float()\n' in text
    )


@pytest.mark.parametrize(("form", "is_in_place"), [("fused", False), ("foreach", True)])
def test_a_layout_is_changed_by_the_one_line_where_a_fused_optimizer_loads_its_state(
    form: str, is_in_place: bool
) -> None:
    """Moments of a checkpoint keep the strides they were saved with, which only the fused form trusts."""
    text = SCRIPT.replace("ARGUMENTS", "") + "optimizer.load_state_dict(state)\n"
    patch = patch_of(written(text.encode(), {"memory_format": "channels_last", "optimizer_impl": form}), RESULT)
    assert (patch.why_whole is None) == is_in_place


@pytest.mark.parametrize("mode", ["blocks", "cudagraphs"])
@pytest.mark.parametrize("source", [SCRIPT.replace("ARGUMENTS", "").encode(), HF_SCRIPT], ids=["plain", "transformers"])
def test_a_compile_mode_that_torch_does_not_know_is_applied_by_the_one_line(source: bytes, mode: str) -> None:
    """A line of the script's own that named it would end the script."""
    patch = patch_of(written(source, {"compile_mode": mode}), RESULT)
    assert patch.why_whole is not None
    assert changes(patch) == ['+import autotune; autotune.apply("results/here/train.json")']
    assert patch.hints == ()


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({"models": ["torch.nn.modules.container.Sequential abc"]}, "torch compiles none of its own in place"),
        ({"steps_model": False}, "needs one model, which one optimizer steps"),
        ({"optimizers": (None,)}, "is given by no call in the script's own files"),
    ],
)
def test_a_model_is_compiled_by_the_one_line_where_a_line_of_its_own_would_mislead(known: Any, why: str) -> None:
    """`nn.Module.compile` does nothing for torch's own classes, and only one model can be meant."""
    result = written(SCRIPT.replace("ARGUMENTS", "").encode(), {"compile_mode": "default"}, **known)
    patch = patch_of(result, RESULT)
    assert patch.why_whole is not None
    assert patch.why_whole.startswith("compile_mode ")
    assert why in patch.why_whole


@pytest.mark.parametrize(
    "traced",
    ["torch.jit.trace(model, x)", "torch.onnx.export(model, x, 'out', dynamo=False)", "writer.add_graph(model, x)"],
)
def test_a_model_that_the_script_traces_is_compiled_by_the_one_line(traced: str) -> None:
    """Which has torch trace what the model computes by itself; it refuses to trace compiled code."""
    text = SCRIPT.replace("ARGUMENTS", "") + traced + "\n"
    patch = patch_of(written(text.encode(), {"compile_mode": "default"}), RESULT)
    assert patch.why_whole is not None
    assert "the model is traced, which refuses compiled code" in patch.why_whole


@pytest.mark.parametrize(
    ("layout", "after"),
    [
        ("\n    num_workers=0,  # why\n", "\n    num_workers=2,  # why\n    prefetch_factor=4,\n)"),
        ("\n    num_workers=0  # why\n", "\n    num_workers=2,  # why\n    prefetch_factor=4\n)"),
        ("\n    num_workers=(0)", "\n    num_workers=(2),\n    prefetch_factor=4)"),
        ("num_workers=0,", "num_workers=2, prefetch_factor=4,)"),
    ],
    ids=["a comma in the end", "none", "the bracket behind the last", "one line"],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_arguments_are_added_as_the_others_stand(layout: str, after: str, newline: str) -> None:
    """A line each where each has one; line endings are the file's."""
    source = SCRIPT.replace("ARGUMENTS", layout).replace("\n", newline).encode()
    patch = patch_of(written(source, {"num_workers": 2, "prefetch_factor": 4}), RESULT)
    assert after.replace("\n", newline).encode() in patch.files[0].after
    assert patch.files[0].after.count(b"\r") == patch.files[0].after.count(b"\n") * (newline == "\r\n")


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
    """And by ourselves: forward it leads to what `keep` writes, in reverse to what was measured."""
    source = (SCRIPT.replace("ARGUMENTS", "num_workers=0") + last).replace("\n", newline).encode()
    patch = patch_of(written(source, {"num_workers": 2, "num_threads": 1}), RESULT)
    Path("train.diff").write_bytes(patch.diff)
    for options, expected in (([], patch.files[0].after), (["-R"], source)):
        words = [word for part in tool for word in (options if part == "{}" else [part])]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert Path("train.py").read_bytes() == expected
    assert reverted(patch.diff, "train.py", patch.files[0].after) == source
    assert reverted(patch.diff, "train.py", source) is None


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
    """They would go on with the data of the first epoch; under the one line they start again."""
    content = SCRIPT.replace("ARGUMENTS", "num_workers=0").encode()
    best = {"num_workers": 2, "persistent_workers": True}
    assert b"persistent_workers=True" in patch_of(written(content, best), RESULT).diff
    patch = patch_of(written(content, best, may_change_data=True), RESULT)
    assert b"persistent_workers" not in patch.diff
    assert b"autotune.apply" in patch.diff
    assert "persistent_workers would hide from workers" in (patch.why_whole or "")


def test_a_line_that_is_not_known_to_its_end_is_found_by_what_it_makes() -> None:
    """Python 3.10 tells lines alone."""
    result = written(SCRIPT.replace("ARGUMENTS", "num_workers=int(0)").encode(), {"num_workers": 2})
    script = result.workload.script
    assert script is not None
    assert isinstance(script.source, SourceRecord)
    (site,) = script.source.loaders
    assert site is not None
    source = script.source.model_copy(update={"loaders": (site.model_copy(update={"end": None}),)})
    script = script.model_copy(update={"source": source})
    result = result.model_copy(update={"workload": result.workload.model_copy(update={"script": script})})
    assert "num_workers=2" in changes(patch_of(result, RESULT))[1]


@pytest.mark.parametrize(
    ("content", "in_place"),
    [
        (b"for epoch in range(3):\n    x = DataLoader(1, num_workers=0)\n", False),
        (b"while True:\n    for batch in DataLoader(1, num_workers=0):\n        pass\n", False),
        (b"for batch in DataLoader(1, num_workers=0):\n    pass\n", True),
    ],
)
def test_workers_that_persist_have_no_place_in_a_loader_that_is_made_again(content: bytes, in_place: bool) -> None:
    """They would start again with each; the one line lets them persist."""
    patch = patch_of(written(content, {"num_workers": 2, "persistent_workers": True}), RESULT)
    assert (patch.why_whole is None) is in_place
    if not in_place:
        assert patch.why_whole == "persistent_workers is of a loader that is made again and again"


@pytest.mark.parametrize(
    ("call", "changed"),
    [
        ("DDP(net, device_ids=[0])", "model = DDP(net, device_ids=[0], bucket_cap_mb=5, gradient_as_bucket_view=True)"),
        ("DDP(net, bucket_cap_mb=1)", "model = DDP(net, bucket_cap_mb=5, gradient_as_bucket_view=True)"),
        ("nn.parallel.DistributedDataParallel(net)", "(net, bucket_cap_mb=5, gradient_as_bucket_view=True)"),
        ("Fabric().setup(net)", None),
    ],
)
def test_the_exchange_of_gradients_is_said_where_a_model_is_put_on_all_ranks(call: str, changed: str | None) -> None:
    """In its own call; where there is none of the script's, by the one line."""
    best = {"ddp_bucket_cap_mb": 5, "gradient_as_bucket_view": True}
    patch = patch_of(written(f"model = {call}\n".encode(), best, ranks=2), RESULT)
    if changed is None:
        assert patch.why_whole is not None
        assert "has 0 calls of DistributedDataParallel to stand in" in patch.why_whole
    else:
        assert patch.why_whole is None
        assert changed in changes(patch)[1]
