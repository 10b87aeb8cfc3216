"""A look at a script finds the loop that trains, or says in one sentence why it cannot be tuned."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch

from autotune.errors import UsageError, WorkloadError
from autotune.knobs import WorkloadFacts
from autotune.scripts import Script, ScriptIsolation
from autotune.scripts.facts import facts_of, loop_of
from autotune.scripts.seen import SeenScript
from tests.example_scripts import EXAMPLES, START_SECONDS, script
from tests.forked import Forked
from tests.scripts.conftest import SeenIn


def look(wanted: Script, seconds: float = START_SECONDS) -> tuple[SeenScript, WorkloadFacts]:
    """What a look sees, and the facts of it."""
    with ScriptIsolation(wanted) as isolation:
        isolation.start(seconds)
        return isolation.seen, facts_of(isolation.seen, wanted)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts write into the working directory."""
    monkeypatch.chdir(tmp_path)


def test_loader_model_and_optimizer_of_a_plain_loop_are_found(seen_in: SeenIn) -> None:
    """The loader that feeds training is told from the one that evaluates; the model and the optimizer are named."""
    seen = seen_in(script("plain"))
    facts = facts_of(seen, script("plain"))
    assert [loader.arguments["batch_size"] for loader in seen.loaders] == [32]
    assert facts.samples == 640
    assert facts.model is not None
    assert (facts.model.weights, facts.model.optimizer) == (1669, "SGD")
    assert (facts.pass_bytes, facts.update_bytes) == (3 * 4 * 1669, 5 * 4 * 1669)  # with a momentum
    assert facts.padding_fraction is None
    assert (facts.classes, facts.score_bytes) == (5, 4 * 5)
    assert facts.baseline.effective_batch == 32


@pytest.mark.parametrize(("beside", "is_there"), [("other.py", True), ("autotune.py", False)])
def test_another_module_of_its_name_is_not_taken_for_autotune(
    beside: str, is_there: bool, tmp_path: Path, seen_in: SeenIn
) -> None:
    """The one line would fail in a script that imports it; where the script was tuned is told besides."""
    shutil.copy(EXAMPLES / "plain.py", tmp_path / "train.py")
    (tmp_path / beside).touch()
    seen = seen_in(Script((sys.executable, "train.py")))
    assert seen.source["has_autotune"] is is_there
    assert loop_of(seen)["place"] == {"torch": torch.__version__, "gpu": None, "ranks": 1}


def test_a_module_is_known_whose_package_imports_torch(tmp_path: Path) -> None:
    """Python comes to the package before it knows the module's file; what the script was run with is known by both."""
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("import torch\n")
    shutil.copy(EXAMPLES / "plain.py", package / "train.py")
    seen, _ = look(Script((sys.executable, "-m", "pkg.train")))
    assert seen.source["main"] == str(package / "train.py")
    assert [site["file"] for site in seen.source["loaders"]] == [str(package / "train.py")]
    assert (seen.argv, seen.first_argv) == ([str(package / "train.py")], ["-m"])


def test_accumulation_is_counted_and_a_loader_that_only_looks_at_data_is_passed_over(seen_in: SeenIn) -> None:
    """Four micro-batches a step, though a `try` catches all exceptions and another loader reads the same data."""
    seen = seen_in(script("accumulating"))
    facts = facts_of(seen, script("accumulating"))
    assert (facts.baseline.batch_size, facts.baseline.accumulation_steps) == (16, 4)
    assert [loader.arguments["batch_size"] for loader in seen.loaders] == [16]


def test_a_loop_without_a_loader_is_counted_by_its_steps(seen_in: SeenIn) -> None:
    """Samples of a step are what the model is called with."""
    seen = seen_in(script("without_loader"))
    assert seen.loaders == ()
    assert facts_of(seen, script("without_loader")).baseline.batch_size == 16


def test_two_optimizers_that_step_in_turn_are_one_step(seen_in: SeenIn) -> None:
    """Both models and both optimizers are seen."""
    seen = seen_in(script("adversarial"))
    assert (seen.optimizers, len(seen.models)) == (2, 2)
    assert facts_of(seen, script("adversarial")).baseline.effective_batch == 32


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (script("no_training"), "without a step of an optimizer of torch (8 calls of models, 1 loaders"),
        (Script((sys.executable, "-I", "-c", "import torch")), "started with -I, -E or -S"),
        (Script(("true",)), f"a command that trains, but {shutil.which('true')} ended without importing torch"),
    ],
    ids=["evaluates only", "isolated", "no Python"],
)
def test_what_does_not_train_is_refused_in_one_sentence(wanted: Script, told: str) -> None:
    """The sentence says what was seen."""
    with pytest.raises(WorkloadError, match=r"write a build|last output|have it inherit") as refused:
        look(wanted)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        ("raise KeyError('data')", "KeyError: 'data'; fix it"),
        ("try: raise ValueError('no such data')\nexcept Exception: sys.exit(1)", "ValueError: no such data"),
        ("try: raise ValueError('no such data')\nexcept Exception: exit(1)", "ValueError: no such data"),
    ],
)
def test_an_error_before_training_is_told(fails: str, told: str, tmp_path: Path, seen_in: SeenIn) -> None:
    """Also one that the script prints by itself, as Hydra does; what it catches and goes on from is none."""
    (tmp_path / "train.py").write_text("import sys, torch\ntry: {}[1]\nexcept KeyError: pass\n" + fails)
    with pytest.raises(WorkloadError) as refused:
        seen_in(Script((sys.executable, "train.py")))
    assert f"failed before it had trained: {told}" in str(refused.value)


def test_a_torch_that_the_recorder_does_not_know_ends_the_script(tmp_path: Path) -> None:
    """It would train for real, and nobody would revert what it writes; the sentence does not blame the script."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '1.8.0+cu111'\n")
    (tmp_path / "train.py").write_text("import torch\nopen('weights', 'w').write('trained')\n")
    with pytest.raises(WorkloadError, match=r"recorder failed, and not the script: .* newer, got 1\.8\.0\+cu111"):
        look(Script((sys.executable, str(tmp_path / "train.py"))))
    assert not (tmp_path / "weights").exists()


def test_a_script_that_takes_too_long_to_begin_is_told_so(tmp_path: Path) -> None:
    """The time that was waited stands in the message."""
    sleeper = tmp_path / "sleeper.py"
    sleeper.write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(WorkloadError, match=r"did not import torch within 2 s; give a longer --budget"):
        look(Script((sys.executable, str(sleeper))), 2.0)


SLOW = """
import sys, time, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(9):
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    time.sleep(float(sys.argv[1]))
"""


def test_two_slow_steps_are_enough_when_time_runs_out(tmp_path: Path, forked: Forked) -> None:
    """Something can be said of them."""
    (tmp_path / "train.py").write_text(SLOW)
    seen = forked.look(("train.py", "1.5"), tmp_path, seconds=2.0)
    assert (seen.optimizer, seen.step_samples) == ("SGD", 4)


@pytest.mark.slow
def test_one_slow_step_is_too_few(tmp_path: Path) -> None:
    """The number of steps is told, and what to do."""
    (tmp_path / "train.py").write_text(SLOW)
    with pytest.raises(WorkloadError, match=r"took 1 optimizer step within 15 s, too few to measure; give a longer"):
        look(Script((sys.executable, "train.py", "600")), 15.0)


def test_a_script_that_cannot_be_watched_is_ended_before_it_trains(tmp_path: Path) -> None:
    """It would overwrite the user's own files, and train until the time is up."""
    (tmp_path / "train.py").write_text("import torch, time\ntime.sleep(5)\nopen('weights', 'w').write('trained')\n")
    (tmp_path / "train.sh").write_text(f"PYTHONPATH=/elsewhere {sys.executable} {tmp_path / 'train.py'}\n")
    with pytest.raises(WorkloadError, match=r"loads torch where the recorder is not .*have it inherit PYTHONPATH"):
        look(Script(("bash", str(tmp_path / "train.sh"))))
    assert not (tmp_path / "weights").exists()


def test_env_may_set_the_path_of_python(tmp_path: Path) -> None:
    """The recorder comes along; what the script imports from there it finds."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "rows.py").write_text("COUNT = 4\n")
    train = tmp_path / "train.py"
    train.write_text(
        "import rows, torch\nmodel = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "while True:\n    model(torch.ones(rows.COUNT, 2)).sum().backward()\n    optimizer.step()\n"
    )
    seen, _ = look(Script(("env", "A=1", f"PYTHONPATH={tmp_path / 'mine'}", sys.executable, str(train))))
    assert seen.step_samples == 4


@pytest.mark.parametrize(("words", "told"), [((), "got none"), (("no-such-program",), "'no-such-program'")])
def test_no_command_is_refused(words: tuple[str, ...], told: str) -> None:
    """Neither nothing nor a program that is not there."""
    with pytest.raises(UsageError, match=told):
        Script.of(words)


PADDED = """
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

texts = [torch.full((length,), 7) for length in (4, 8) * 64]
model = nn.EmbeddingBag(100, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def collate(samples):
    tokens = pad_sequence(samples, batch_first=True)
    return {"input_ids": tokens, "attention_mask": (tokens != 0).long()}


for _ in range(500):
    for batch in DataLoader(texts, batch_size=8, collate_fn=collate):
        optimizer.zero_grad()
        model(batch["input_ids"]).sum().backward()
        optimizer.step()
"""


def test_the_padding_of_a_scripts_batches_is_seen(tmp_path: Path, seen_in: SeenIn) -> None:
    """Half of the texts are half as long as the others: a quarter of the tokens, and none by length."""
    (tmp_path / "train.py").write_text(PADDED)
    padded = Script((sys.executable, "train.py"))
    facts = facts_of(seen_in(padded), padded)
    assert facts.padding_fraction == pytest.approx(0.25)
    assert facts.sorted_padding_fraction is not None
    assert facts.sorted_padding_fraction < 0.1
