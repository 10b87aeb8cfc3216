"""`autotune patch` of real scripts: changed as a result says, they train so; undone, they are as before."""

from __future__ import annotations

import hashlib
import io
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from autotune.commands.patch import _print_diff, after_run, write_files
from autotune.errors import UsageError
from autotune.patching.diff import reverted, unified
from autotune.patching.in_place import EditedFile
from autotune.patching.patch import in_effect
from autotune.results.files import write_document
from autotune.scripts import Script
from autotune.scripts.facts import baseline_of
from tests.example_scripts import EXAMPLES
from tests.forked import Forked
from tests.inside import run_inside
from tests.processes import Finished, budget, run
from tests.scripts.conftest import SeenIn
from tests.scripts.patching import claimed, looked_at, written

DATA = "TensorDataset(torch.randn(256, 8), torch.randn(256, 1))"
LOOP = """
for _ in range({epochs}):
    for x, y in loader:
        out = model(x)
        nn.functional.mse_loss(out, y).backward()
        optimizer.step()
        optimizer.zero_grad()
print("fused", optimizer.param_groups[0].get("fused"))
"""
IMPORTS = """import argparse
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
"""
BODY = "model = nn.Linear(8, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
PLAIN = f"{IMPORTS}{BODY}loader = DataLoader({DATA}, batch_size=16, shuffle=True)\n{LOOP}".replace(
    "{epochs}", "int(sys.argv[1])"
)
LITERALS = PLAIN.replace("shuffle=True", "shuffle=True, num_workers=0").replace("\n", "\r\n")
OPTION = PLAIN.replace("shuffle=True", "num_workers=args.workers, shuffle=True").replace(
    "model = nn",
    "parser = argparse.ArgumentParser()\n"
    "parser.add_argument('--workers', default=0, type=int)\n"
    "parser.add_argument('epochs', type=int)\n"
    "args = parser.parse_args()\n"
    "model = nn",
)
INDENTED = f"""{IMPORTS}

def main():
\tmodel = nn.Linear(8, 1)
\toptimizer = torch.optim.SGD(
\t\tmodel.parameters(),
\t\tlr=0.01,  # small
\t)
\tloader = DataLoader(
\t\t{DATA},
\t\tbatch_size=16,
\t\tnum_workers=0
\t)
{LOOP.replace("    ", chr(9)).replace(chr(10), chr(10) + chr(9)).replace("{epochs}", "int(sys.argv[1])").rstrip()}

if __name__ == "__main__":
\tmain()"""
WORKERS = {"num_workers": 1, "persistent_workers": True}
FUSED = {"optimizer_impl": "fused"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def patch(*words: str) -> Finished:
    """`autotune patch` of the result in this folder."""
    return run_inside(["patch", "result.json", *words], Path.cwd())


def told(done: Finished) -> str:
    """What it told, in one line."""
    return " ".join(done.err.split())


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(OPTION, id="option"),
        pytest.param(LITERALS, id="literals and CRLF"),
        pytest.param(INDENTED, id="tabs and no last line ending"),
    ],
)
def test_a_script_is_changed_trains_so_and_is_as_before_when_that_is_undone(
    text: str, seen_in: SeenIn, forked: Forked, tmp_path: Path
) -> None:
    """Loader and optimizer in place; the file's mode and, undone, each of its bytes stay."""
    script, command = Path("train.py"), (sys.executable, "train.py", "5000")
    script.write_bytes(text.encode())
    script.chmod(0o750)
    claimed(seen_in(Script(command)), command, Path("result.json"), **WORKERS, **FUSED)
    done = patch()
    assert done.status == 0, done.err
    assert "changed: train.py" in told(done)
    assert "one line" not in told(done)
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    seen = seen_in(Script(command))
    assert [seen.loaders[0].arguments[name] for name in ("num_workers", "persistent_workers")] == [1, True]
    trained = forked.run(("train.py", "1"), tmp_path)
    assert trained.stdout == "fused True\n", trained.stderr
    assert "already changed" in told(patch())
    assert patch("--reverse").status == 0
    assert script.read_bytes() == text.encode()
    assert "already restored" in told(patch("--reverse"))


@pytest.mark.slow
def test_the_one_line_applies_what_has_no_place_and_finds_the_result(tmp_path: Path) -> None:
    """The loader's workers follow from an expression; the script runs from a shell script in another folder."""
    folder = tmp_path / "code"
    folder.mkdir()
    text = PLAIN.replace("shuffle=True", "num_workers=len(sys.argv) - 2")
    (folder / "train.py").write_text(f"'''It trains.'''\n{text}")
    (tmp_path / "train.sh").write_text(f"cd code\nexec {sys.executable} train.py $1\n")
    command = ["bash", "train.sh", "5000"]
    claimed(looked_at(command), command, Path("result.json"), **FUSED, num_workers=1)
    done = patch()
    assert done.status == 0, done.err
    assert "one line applies all of it: num_workers is computed by the script" in told(done)
    line = 'import autotune; autotune.apply("../result.json")'
    assert (folder / "train.py").read_text().splitlines()[:2] == ["'''It trains.'''", line]
    trained = subprocess.run(["bash", "train.sh", "1"], capture_output=True, text=True)
    assert "fused True" in trained.stdout, trained.stderr


@pytest.mark.slow
def test_files_that_a_module_imports_are_changed_where_the_loader_is_made() -> None:
    """`python -m pkg.train`, whose loader is made in another file and whose optimizer in a function."""
    package = Path("pkg")
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "data.py").write_text(
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n\n\n"
        f"def make_loader(shuffle):\n    return DataLoader({DATA}, batch_size=16, shuffle=shuffle)\n"
    )
    (package / "train.py").write_text(
        "import sys\nimport torch\nfrom torch import nn\nfrom .data import make_loader\n\n\n"
        "def make(model):\n    return torch.optim.SGD(model.parameters())\n\n\n"
        "model = nn.Linear(8, 1)\noptimizer = make(model)\nloader = make_loader(True)\n"
        + LOOP.replace("{epochs}", "int(sys.argv[1])")
    )
    command = [sys.executable, "-m", "pkg.train", "5000"]
    claimed(looked_at(command), command, Path("result.json"), **WORKERS, **FUSED)
    assert patch().status == 0
    diff = Path("result.diff").read_text()
    assert "shuffle=shuffle, num_workers=1, persistent_workers=True)" in diff
    assert "SGD(model.parameters(), fused=True)" in diff
    assert looked_at(command).loaders[0].arguments["num_workers"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "step", "changed"),
    [
        (
            "lightning_fit",
            (32, 1),
            ['enable_progress_bar=False, precision="bf16-mixed")', "shuffle=True, num_workers=1), "],
        ),
        ("accelerated", (16, 2), ['steps=2, mixed_precision="bf16")', "shuffle=True, num_workers=1))"]),
        ("transformers_trainer", (16, 2), ["disable_tqdm=True, bf16=True, dataloader_num_workers=1,"]),
    ],
)
def test_a_framework_is_told_in_its_own_words(
    name: str, step: tuple[int, int], changed: list[str], seen_in: SeenIn
) -> None:
    """Where the script's own file makes the Trainer, its arguments or the Accelerator. Its own step is found there."""
    shutil.copy(EXAMPLES / f"{name}.py", "train.py")
    command = (sys.executable, "train.py")
    best: dict[str, Any] = {"precision": "bf16", "num_workers": 1}
    seen = looked_at(command)
    own = baseline_of(seen)
    assert (own.batch_size, own.accumulation_steps) == step
    claimed(seen, command, Path("result.json"), **best)
    done = patch()
    assert done.status == 0, done.err
    diff = Path("result.diff").read_text()
    assert [words for words in changed if words not in diff] == []
    if name != "lightning_fit":  # Accelerate's autocast begins within the model's forward, where a look sees none
        best.pop("precision")
    found = baseline_of(seen_in(Script(command))).model_dump()
    assert {knob: found[knob] for knob in best} == best


def test_a_dry_run_prints_the_whole_diff(capfd: pytest.CaptureFixture[str]) -> None:
    """Blank lines at its end are context, without which it would not apply."""
    edited = EditedFile("train.py", b"a\n\n\n\n", b"b\n\n\n\n")
    _print_diff([edited])
    assert capfd.readouterr().out == unified(edited.name, edited.before, edited.after).decode()


TRAINER = "Trainer(Classifier(), arguments, train_dataset=Rows())"
PLAIN_ADAMW = "use_cpu=True, optim='adamw_torch',"
HANDED_OVER = """
from torch.utils.data import DataLoader


class Own(Trainer):
    def get_train_dataloader(self):
        return self.accelerator.prepare(DataLoader(self.train_dataset, batch_size=16, num_workers=0))


model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), foreach=None)
Own(model, arguments, train_dataset=Rows(), optimizers=(optimizer, None))"""
LOOKED_THROUGH = """
from torch.utils.data import DataLoader

rows = Rows()
batch = next(iter(DataLoader(rows, batch_size=4)))
Trainer(Classifier(), arguments, train_dataset=rows)"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "changed"),
    [
        (HANDED_OVER, ["batch_size=16, num_workers=1))", "foreach=False, fused=True)"]),
        (LOOKED_THROUGH, ["dataloader_num_workers=1", 'optim="adamw_torch_fused"']),
    ],
    ids=["the script", "the Trainer, from data that the script has looked at"],
)
def test_what_a_trainer_trains_with_is_changed_where_it_is_made(made: str, changed: list[str], seen_in: SeenIn) -> None:
    """The changed script trains so: an argument of the Trainer has no effect on what the script hands over."""
    text = (EXAMPLES / "transformers_trainer.py").read_text()
    Path("train.py").write_text(text.replace(TRAINER, made).replace("use_cpu=True,", PLAIN_ADAMW))
    command = (sys.executable, "train.py")
    best: dict[str, Any] = {"num_workers": 1, "optimizer_impl": "fused"}
    claimed(seen_in(Script(command)), command, Path("result.json"), **best)
    done = patch()
    assert (done.status, "one line" in told(done)) == (0, False), done.err
    diff = Path("result.diff").read_text()
    assert [words for words in changed if words not in diff] == []
    found = baseline_of(seen_in(Script(command)))
    assert {knob: getattr(found, knob) for knob in best} == best


def test_a_call_that_makes_other_loaders_too_is_left_alone(seen_in: SeenIn) -> None:
    """The one line changes the loader that trains, and not the one that evaluates."""
    text = PLAIN.replace("loader = ", "def make(data): return ").replace(DATA, "data").replace(
        "\nfor _", f"\nloader = make({DATA})\ntest = make(TensorDataset(torch.randn(64, 8)))\nfor _", 1
    )  # fmt: skip
    Path("train.py").write_text(text)
    command = (sys.executable, "train.py", "5000")
    claimed(seen_in(Script(command)), command, Path("result.json"), num_workers=1, prefetch_factor=4)
    done = patch("--dry-run")
    assert "+import autotune; autotune.apply(" in done.out
    assert "num_workers and prefetch_factor would change for the other loaders that line " in told(done)


OTHERS = "got data.py in another state"
AGAIN = f"{OTHERS}; 'autotune patch --reverse result.json' takes the others out"
BY_HAND = f"{OTHERS}; 'patch -R -p1 < result.diff'"


@pytest.mark.parametrize(
    ("data", "words", "status", "sentence"),
    [
        (b"2\n", [], 0, "train.py, data.py: already changed"),
        (b"2\n", ["--reverse"], 0, "restored: train.py, data.py"),
        (b"1\n", [], 2, AGAIN),
        (b"1\n", ["--reverse"], 0, "restored: train.py"),
        (b"2\n3\n", [], 2, BY_HAND),
        (b"2\n3\n", ["--reverse"], 2, BY_HAND),
    ],
    ids=["whole", "whole, reverse", "restored", "restored, reverse", "edited", "edited, reverse"],
)
def test_a_half_applied_patch_is_not_taken_for_a_whole_one(
    data: bytes, words: list[str], status: int, sentence: str
) -> None:
    """The script would train with half of the result; a file that was restored has nothing left to take out."""
    before = {"train.py": b"x = DataLoader(1, num_workers=0)\n", "data.py": b"1\n"}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in before.items()}
    write_document(written(before["train.py"], {"num_workers": 1}, files=hashes), Path("result.json"))
    Path("data.py").write_bytes(before["data.py"])
    assert patch().status == 0
    with Path("result.diff").open("ab") as diff:
        diff.write(unified("data.py", before["data.py"], b"2\n"))
    Path("data.py").write_bytes(data)
    patched = {name: Path(name).read_bytes() for name in before}
    done = patch(*words)
    assert (done.status, sentence in told(done)) == (status, True), done.err
    expected = before if words and not status else patched
    assert {name: Path(name).read_bytes() for name in before} == expected
    if expected is before:
        assert "train.py, data.py: already restored" in told(patch("--reverse"))


def run_and_patch(content: bytes, *, patching: bool, **best: Any) -> str:
    """What ``autotune run --patch`` does and shows at its end, for a result of a script with this content."""
    result, place = written(content, best), Path("result.json")
    write_document(result, place)
    lines, failure = after_run(result, place, patching=patching)
    assert failure is None
    console = Console(file=io.StringIO(), width=200)
    console.print(lines)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def test_a_diff_that_is_still_applied_outlives_the_next_run() -> None:
    """It gets another name, by which both changes can be reverted, the newest first."""
    before = b"x = DataLoader(1, num_workers=0)\ny = SGD(1)\n"
    assert "kept" not in run_and_patch(before, patching=False, num_workers=1)  # the next diff replaces it
    assert "kept" not in run_and_patch(before, patching=True, num_workers=1)
    between = Path("train.py").read_bytes()
    told = run_and_patch(between, patching=True, optimizer_impl="fused")
    assert "kept: result-1.diff, the diff of the result before: it is still in train.py" in told
    assert "patch -R -p1 < result-1.diff" in told
    assert b"fused=True" in Path("train.py").read_bytes()
    assert patch("--reverse").status == 0
    assert Path("train.py").read_bytes() == between
    subprocess.run(["patch", "-R", "-p1", "-i", "result-1.diff"], check=True)
    assert Path("train.py").read_bytes() == before


def test_a_diff_of_something_else_is_kept() -> None:
    """It only has the name that this result's diff gets."""
    Path("result.diff").write_bytes(b"--- a/mine.py\n+++ b/mine.py\n@@ -1 +1 @@\n-1\n+2\n")
    told = run_and_patch(b"x = DataLoader(1, num_workers=0)\n", patching=False, num_workers=1)
    assert "kept: result-1.diff, a diff of something else" in told
    assert b"mine.py" in Path("result-1.diff").read_bytes()


def test_a_diff_without_spaces_on_empty_lines_is_read() -> None:
    """Editors remove them."""
    diff = b"--- a/train.py\n+++ b/train.py\n@@ -1,3 +1,3 @@\n x = 1\n\n-y = 1\n+y = 2\n"
    assert reverted(diff, "train.py", b"x = 1\n\ny = 2\n") == b"x = 1\n\ny = 1\n"
    assert not in_effect(b"--- a/train.py\n+++ b/train.py\n@@ -1,3 +1,3 @@\nnothing of it\n")


def test_a_result_without_changes_keeps_a_diff_that_is_still_applied() -> None:
    """The diff of the result before, which is reverted, is no diff of this one."""
    run_and_patch(b"x = DataLoader(1, num_workers=0)\n", patching=True, num_workers=1)
    told = run_and_patch(Path("train.py").read_bytes(), patching=False)
    assert "kept: result-1.diff" in told
    assert "there is none" in told
    assert not Path("result.diff").exists()


def test_a_diff_that_cannot_be_moved_is_told() -> None:
    """The result is written all the same."""
    Path("result.diff").mkdir()
    assert "result.diff holds the diff of the result before, and cannot be moved" in run_and_patch(
        b"x = DataLoader(1, num_workers=0)\n", patching=False, num_workers=1
    )


def test_all_files_stay_as_they_are_where_one_cannot_be_written() -> None:
    """The first is reverted when the second fails; the error says what to do."""
    Path("a.py").write_bytes(b"1")
    Path("b.py").mkdir()
    files = [EditedFile("a.py", b"1", b"2"), EditedFile("b.py", b"1", b"2")]
    with pytest.raises(UsageError, match=r"b\.py could not be written .*; nothing was changed"):
        write_files(files)
    assert Path("a.py").read_bytes() == b"1"
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["a.py", "b.py"]


def test_a_link_stays_one_and_the_file_behind_it_is_changed() -> None:
    """Its mode is kept."""
    Path("real.py").write_bytes(b"1")
    Path("real.py").chmod(0o640)
    Path("link.py").symlink_to("real.py")
    write_files([EditedFile("link.py", b"1", b"2")])
    assert (Path("link.py").is_symlink(), Path("real.py").read_bytes()) == (True, b"2")
    assert stat.S_IMODE(Path("real.py").stat().st_mode) == 0o640


NAMES = ["/{elsewhere}", "../elsewhere/train.py", "link.py", "linked/train.py", "a\0b"]


@pytest.mark.parametrize("name", NAMES, ids=["absolute", "above", "a link", "a linked folder", "no name"])
@pytest.mark.parametrize("words", [[], ["--reverse"]], ids=["patch", "reverse"])
def test_files_elsewhere_that_a_result_names_stay_as_they_are(
    name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come from anyone: nothing outside the working directory is read or written, nor is anything else then."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    monkeypatch.chdir(here)
    name = name.replace("/{elsewhere}", str(elsewhere / "train.py"))
    result = written(PLAIN.encode(), {"num_workers": 1})
    assert result.workload.script is not None
    source = result.workload.script.source
    assert source is not None
    write_document(result, Path("result.json"))
    patched = patch()
    assert patched.status == 0, patched.err
    shutil.copy("train.py", elsewhere / "train.py")  # with its changes, which --reverse would take out
    Path("link.py").symlink_to(elsewhere / "train.py")
    Path("linked").symlink_to(elsewhere)
    named = {"main": name, "files": {**source.files, name: source.files["train.py"]}}
    sites = tuple(site and site.model_copy(update={"file": name}) for site in source.loaders)
    source = source.model_copy(update={**named, "loaders": sites})
    script = result.workload.script.model_copy(update={"source": source})
    workload = result.workload.model_copy(update={"script": script})
    write_document(result.model_copy(update={"workload": workload}), Path("result.json"))
    diff = Path("result.diff").read_text().replace("a/train.py", name).replace("b/train.py", name)
    Path("result.diff").write_text(Path("result.diff").read_text() + diff)
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*.*")}
    done = patch(*words)
    assert (done.status, "below the working directory" in told(done)) == (2, True), done.err
    assert {path: path.read_bytes() for path in tmp_path.glob("*/*.*")} == before


def test_the_folder_that_holds_an_absolute_name_may_change_it() -> None:
    """A script that was tuned from another folder is changed from its own."""
    Path("train.py").write_bytes(b"1")
    write_files([EditedFile(str(Path("train.py").resolve()), b"1", b"2")])
    assert Path("train.py").read_bytes() == b"2"


def test_a_result_that_changes_nothing_patches_nothing() -> None:
    """`patch` says so, and `--reverse` has nothing to take out."""
    write_document(written(b"x = DataLoader(1, num_workers=0)", {}), Path("result.json"))
    done = patch()
    assert (done.status, Path("train.py").read_bytes()) == (0, b"x = DataLoader(1, num_workers=0)")
    assert "nothing faster was found" in told(done)
    assert "there is no result.diff either: nothing was patched with this result" in told(patch("--reverse"))
    assert not Path("result.diff").exists()


SLEEPING = """import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.ones(8), torch.ones(1)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Rows(), batch_size=8)
for _ in range(5000):
    for x, y in loader:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_a_run_that_claims_something_changes_the_script_in_the_end_where_that_was_asked_for() -> None:
    """Two workers that wait side by side are a gain for sure; the last lines say how to take it out again."""
    Path("train.py").write_text(SLEEPING)
    words = ["--only", "num_workers", "--out", "result.json", "--", sys.executable, "train.py"]
    done = run(["run", "--patch", "--budget", budget(60), *words], Path.cwd(), 280)
    assert done.status == 0, done.err
    assert "changed: train.py" in told(done)
    assert told(done).endswith("undo it: autotune patch --reverse result.json")
    assert "loader = DataLoader(Rows(), batch_size=8, num_workers=" in Path("train.py").read_text()
    assert patch("--reverse").status == 0
    assert Path("train.py").read_text() == SLEEPING
