"""A token on the command line reaches the script, and no file, page, message or answer of autotune."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autotune.errors import WorkloadError
from autotune.measuring import Outcome
from autotune.report import write_report
from autotune.results.files import write_document
from autotune.results.result import Result, ScriptRecord, SourceRecord, read_result
from autotune.scripts import Script
from autotune.search.storage import open_study
from autotune.secrets import remember_secrets
from tests.factories import make_burst, make_result
from tests.inside import run_inside
from tests.processes import budget, run

PRIVATE = "abc-Secret-4711"
COMMAND = (sys.executable, "train.py", "--hf-token", PRIVATE, f"api_key={PRIVATE}", "--tokenizer", "bert")
TRAINS = """
import sys
import torch
if sys.argv[2] != "-".join(["abc", "Secret", "4711"]):
    raise SystemExit("the token is wrong")
data = torch.utils.data.TensorDataset(torch.randn(512, 16), torch.randint(0, 4, (512,)))
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(1000):
    for features, labels in torch.utils.data.DataLoader(data, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(features), labels).backward()
        optimizer.step()
"""
FAILS = (
    "import sys, torch\nprint('refused: ' + sys.argv[2], file=sys.stderr)\nraise RuntimeError('no ' + sys.argv[2])\n"
)


def scripted() -> Result:
    """A result of a script that was started with secrets, which a note quotes too."""
    result = make_result()
    source = SourceRecord(main="train.py", folder=".", argv=COMMAND[1:])
    record = ScriptRecord(command=COMMAND, loop={"loaders": ["TensorDataset 512 32"]}, source=source)
    workload = result.workload.model_copy(update={"script": record, "target": Script(COMMAND).text})
    search = result.search.model_copy(update={"notes": (f"the server said: token={PRIVATE} is old",)})
    return result.model_copy(update={"workload": workload, "search": search})


def files_with(secret: str, folder: Path) -> list[str]:
    """The files of a folder that hold a text, but for the script's own."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "train.py"]
    return [path.name for path in files if secret.encode() in path.read_bytes()]


def test_no_file_of_a_result_holds_a_secret(tmp_path: Path) -> None:
    """JSON, page, card and comparisons; other options stay readable."""
    write_document(scripted(), tmp_path / "result.json")
    write_report(scripted(), tmp_path / "result.json")
    assert run_inside(["card", "result.json"], tmp_path).status == 0
    for name in ("all.md", "all.csv", "all.json", "all.html"):
        assert run_inside(["compare", "result.json", "--out", name], tmp_path).status == 0
    assert len(list(tmp_path.iterdir())) == 8
    assert files_with(PRIVATE, tmp_path) == []
    script = read_result(tmp_path / "result.json").workload.script
    assert script is not None
    assert script.command == (*COMMAND[:3], "***", "api_key=***", "--tokenizer", "bert")
    assert script.source is not None
    assert script.source.argv == script.command[1:]
    assert script.loop == {"loaders": ["TensorDataset 512 32"]}


def test_words_that_look_like_secrets_stay_in_a_file(tmp_path: Path) -> None:
    """Patch, launch, check and cross find the script and the function by them."""
    remember_secrets(("train.py", "--key", "attention_v2"))
    source = SourceRecord(main="attention_v2.py", folder=".", files={"models/attention_v2.py": "0" * 64})
    script = ScriptRecord(command=("python", "train.py", "--token-mixer", "attention_v2"), loop={}, source=source)
    made = make_result(target="multi_token:build_gpt2")
    result = made.model_copy(update={"workload": made.workload.model_copy(update={"script": script})})
    write_document(result, tmp_path / "result.json")
    assert read_result(tmp_path / "result.json") == result
    assert "***" not in (tmp_path / "result.json").read_text()


def test_an_older_file_with_a_secret_is_shown_without_it(tmp_path: Path) -> None:
    """In a terminal, as JSON, and on its page."""
    content = json.loads(scripted().model_dump_json(by_alias=True))
    content["workload"]["script"]["command"] = list(COMMAND)
    content["workload"]["target"] = " ".join(COMMAND)
    (tmp_path / "old.json").write_text(json.dumps(content))
    for arguments in (["show", "old.json"], ["show", "old.json", "--json"], ["show", "old.json", "--why"]):
        done = run_inside(arguments, tmp_path)
        assert done.status == 0
        assert PRIVATE not in done.out + done.err
        assert "***" in done.out or "--why" in arguments
    assert run_inside(["report", "old.json"], tmp_path).status == 0
    assert PRIVATE not in (tmp_path / "old.html").read_text()


def test_errors_and_bursts_hide_what_a_script_has_said(tmp_path: Path) -> None:
    """Python callers, notes, journals and results get the same text."""
    error = WorkloadError(f"last output: token={PRIVATE}", f"    login(token={PRIVATE!r})")
    assert PRIVATE not in f"{error} {error.trace}"
    burst = make_burst(None, outcome=Outcome.CRASHED, reason=f"it failed: --hf-token {PRIVATE} is old")
    assert burst.reason == "it failed: --hf-token *** is old"


def test_the_journal_of_a_search_names_the_command_without_its_secrets(tmp_path: Path) -> None:
    """Its attributes are in it from the start."""
    attributes = {"target": Script(COMMAND).text}
    journal = tmp_path / "result.journal"
    open_study(name="a", storage=None, journal=journal, sampler="random", seed=0, attributes=attributes, resume=False)
    assert files_with(PRIVATE, tmp_path) == []
    assert "--tokenizer bert" in journal.read_text()


@pytest.mark.parametrize("command", ["check", "cross"])
def test_a_stored_command_without_its_secret_is_not_run(command: str, tmp_path: Path) -> None:
    """The sentence says how to pass it; --trust changes nothing."""
    write_document(scripted(), tmp_path / "result.json")
    (tmp_path / "train.py").write_text("open('was-run', 'w')\n")
    done = run_inside([command, "result.json", "--trust"], tmp_path)
    assert done.status == 2
    assert "pass the command with its secret after --" in " ".join(done.err.split())
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("arguments", [["run"], ["launch", "result.json"]])
def test_a_hidden_secret_that_was_copied_is_refused(arguments: list[str], tmp_path: Path) -> None:
    """The line that a report shows has to be completed by hand."""
    write_document(scripted(), tmp_path / "result.json")
    done = run_inside([*arguments, "--", sys.executable, "train.py", "--hf-token", "***"], tmp_path)
    assert done.status == 2
    assert "autotune has hidden a secret; write the secret" in " ".join(done.err.split())


def test_a_script_that_fails_is_quoted_without_its_secret(tmp_path: Path) -> None:
    """Its last lines and its error repeat the token, which has no name there."""
    (tmp_path / "train.py").write_text(FAILS)
    done = run(["run", "--dry-run", "--", *COMMAND], tmp_path)
    assert done.status == 1
    assert PRIVATE not in done.out + done.err
    assert "no ***" in " ".join(done.err.split())


def test_a_look_tells_what_would_be_tried_hides_secrets_and_changes_nothing(tmp_path: Path) -> None:
    """What was found, each knob, and why the others are left; the script had the real token, or it would not train."""
    (tmp_path / "train.py").write_text(TRAINS)
    done = run(["run", "--dry-run", "--", *COMMAND], tmp_path)
    assert done.status == 0, done.err
    assert "TensorDataset of 512 samples, batches of 32" in done.err
    assert "would be tried" in done.err
    assert PRIVATE not in done.out + done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tmp", "train.py"]


@pytest.mark.slow
def test_a_look_hides_secrets_from_programs_too(tmp_path: Path) -> None:
    """As JSON."""
    (tmp_path / "train.py").write_text(TRAINS)
    done = run(["run", "--dry-run", "--json", "--", *COMMAND], tmp_path)
    assert done.status == 0, done.err
    assert PRIVATE not in done.out + done.err
    assert json.loads(done.out)["seen"]["argv"] == [
        "train.py",
        "--hf-token",
        "***",
        "api_key=***",
        "--tokenizer",
        "bert",
    ]


@pytest.mark.slow
def test_a_whole_tuning_and_its_check_hide_the_secret(tmp_path: Path) -> None:
    """Result, page, journal, progress; the check trains with the command that is passed again."""
    (tmp_path / "train.py").write_text(TRAINS)
    out = ["--only", "num_threads", "--budget", budget(18), "--out", "result.json"]
    tuned = run(["run", *out, "--", *COMMAND], tmp_path)
    assert tuned.status == 0, tuned.err
    checked = run(["check", "result.json", "--budget", budget(15), "--", *COMMAND], tmp_path)
    assert checked.status in {0, 1}, checked.err
    assert PRIVATE not in tuned.out + tuned.err + checked.out + checked.err
    assert "the command that runs: " in checked.err
    assert files_with(PRIVATE, tmp_path) == []
