"""`autotune mcp` through the SDK's own client, over stdio: tools, progress, cancellation, a client that is killed."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from pydantic.fields import FieldInfo

from autotune.commands.tune import tune as tune_command
from autotune.mcp import command as mcp_command
from autotune.results.result import Result, read_result
from autotune.results.trainings import trainings_path
from autotune.sessions.options import NOT_FOR_AGENTS, OFFERED, Only
from tests.factories import make_result, note_line
from tests.inside import run_inside
from tests.pages import block
from tests.processes import ROOT, budget, has_measured, heed_signals, slowness, temporary_of

pytest.importorskip("mcp", reason="the SDK: pip install mcp")
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from autotune.mcp import tools
from autotune.mcp.server import Desk

TINY = "tests.workloads.tiny:build"
SCRIPT = """
import torch
print("a script prints to stdout")
data = torch.utils.data.TensorDataset(torch.randn(512, 16), torch.randint(0, 4, (512,)))
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(1000):
    for features, labels in torch.utils.data.DataLoader(data, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(features), labels).backward()
        optimizer.step()
"""


def server(folder: Path, *options: str) -> StdioServerParameters:
    """The server in a folder, with a folder for temporary files of its own."""
    environment = {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary_of(folder)), "PATH": os.environ["PATH"]}
    return StdioServerParameters(
        command=sys.executable, args=["-m", "autotune", "mcp", *options], env=environment, cwd=str(folder)
    )


def served(folder: Path, use: Callable[[Client], Awaitable[Any]], *options: str) -> Any:
    """What comes of using a server in a folder; nothing of it may be left afterwards."""

    async def main() -> Any:
        async with Client(server(folder, *options)) as client:
            return await use(client)

    found = anyio.run(main)
    assert left(folder) == []
    return found


def left(folder: Path) -> list[str]:
    """Processes and temporary folders of runs in a folder."""
    temporary = temporary_of(folder)
    deadline = time.monotonic() + 5
    while (found := _of(temporary)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _of(temporary: Path) -> list[str]:
    marked = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("AUTOTUNE_RUN", "").startswith(str(temporary)):
                marked.append(str(process))
    return [*marked, *(path.name for path in temporary.glob("autotune-*"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a result and a training that notes what it reached."""
    folder = tmp_path_factory.mktemp("project")
    result = make_result()
    search = result.search.model_copy(update={"notes": ("the server said: token=abc-4711-xyz is old",)})
    content = result.model_copy(update={"search": search}).model_dump_json(by_alias=True)
    assert "abc-4711-xyz" in content
    (folder / "a.json").write_text(content)
    trainings_path(folder / "a.json").write_text(note_line(result, ratio=0.97))
    return folder


MISTAKES: tuple[tuple[str, dict[str, Any], list[str]], ...] = (
    ("run", {"model": TINY, "budget": "soon"}, ["--model", TINY, "--budget", "soon"]),
    ("run", {"model": TINY, "pin": {"num_worker": 1}}, ["--model", TINY, "--pin", "num_worker=1"]),
    ("run", {"command": ["no-such-program"]}, ["run", "--", "no-such-program"]),
    ("show", {"file": "nowhere.json"}, ["show", "nowhere.json"]),
    ("show", {"file": ""}, ["show", ""]),
    ("check", {"file": "nowhere.json"}, ["check", "nowhere.json"]),
    ("probe", {"device": "tpu"}, ["probe", "--device", "tpu"]),
)
SENSELESS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("run", {"budgte": "10m", "model": TINY}, "run has no argument budgte; pass only command, model, "),
    ("run", {}, "expected either model (a text, such as train:build), or command"),
    ("run", {"model": TINY, "command": ["python", "train.py"]}, "expected either model"),
    ("run", {"command": "python train.py"}, 'a list of texts, such as ["python", "train.py"], got \'python train.py\''),
    ("run", {"command": ["python", 90]}, "got ['python', 90]; pass one"),
    ("run", {"command": [sys.executable, "train.py"], "explore": {"width": [1]}}, "--explore is for models"),
    ("run", {"command": [sys.executable, "train.py"], "evaluation": True}, "--evaluation is for models"),
    ("compare", {"paths": "."}, "paths: expected a list of paths, such as [\"results\"], got '.'; pass one"),
    ("show", {"fil": "a.json"}, "show has no argument fil; pass only file, why"),
    ("show", {}, "file: expected the path of a result file, got none; pass one"),
    ("show", {"file": 5}, "file: expected the path of a result file, got 5; pass one"),
    ("show", {"file": "a.json", "why": "perhaps"}, "why: expected true or false, got 'perhaps'; pass one"),
)


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, Any]:
    """The tools of a server, and its answers to what measures nothing; their structure is checked by the client."""

    async def use(client: Client) -> dict[str, Any]:
        return {
            "tools": {tool.name: tool for tool in (await client.list_tools()).tools},
            "show": await client.call_tool("show", {"file": "a.json"}),
            "why": await client.call_tool("show", {"file": "a.json", "why": True}),
            "compare": await client.call_tool("compare", {"paths": ["."]}),
            "mistakes": [await client.call_tool(tool, arguments) for tool, arguments, _ in MISTAKES],
            "senseless": [await client.call_tool(tool, arguments) for tool, arguments, _ in SENSELESS],
        }

    found: dict[str, Any] = served(folder, use)
    return found


def confirmed(result: Result) -> bool:
    """Whether a speed-up is beyond doubt."""
    return result.speedup is not None and result.speedup.confirmed


def text_of(answer: Any) -> str:
    """What a model reads."""
    return "\n".join(part.text for part in answer.content)


def test_every_tool_has_the_options_of_its_command(answers: dict[str, Any]) -> None:
    """By the same names, with the same defaults, choices and ranges; but for those that lift a protection."""
    tools = answers["tools"]
    assert tools.keys() == {"probe", "dry_run", "run", "show", "check", "compare"}
    for tool in tools.values():
        assert tool.input_schema["additionalProperties"] is False
    options = inspect.signature(tune_command).parameters
    offered = tools["run"].input_schema["properties"]
    lacking = {"context", "dry_run", "json", "quiet", "version"} | NOT_FOR_AGENTS
    assert offered.keys() == options.keys() - lacking | {"command"}
    assert offered["objective"]["enum"] == ["samples_per_second", "samples_per_joule"]
    assert offered["seed"]["maximum"] == 2**32 - 1
    for name, told in offered.items():
        assert told["description"]
        if name in {"pin", "explore", "warm_start"}:
            assert told["default"] == []
        elif name != "command":
            assert told.get("default") == options[name].default


def test_an_agent_may_pass_what_only_scripts_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the option lifts a protection."""
    assert {"writable", "network"} == NOT_FOR_AGENTS
    harmless = FieldInfo(annotation=bool, default=False, description="Any.")
    harmless.metadata = [Only("scripts", "only they have it")]
    monkeypatch.setattr(tools, "OFFERED", {**OFFERED, "harmless": harmless})
    monkeypatch.setattr(tools, "_argument", lambda _name, default: (bool, default))
    (run_tool,) = (tool for tool in tools.make_tools(Desk(out_anywhere=False)) if tool.name == "run")
    assert "harmless" in run_tool.parameters["properties"]
    assert not NOT_FOR_AGENTS & run_tool.parameters["properties"].keys()


def test_hints_say_which_tools_may_do_harm(answers: dict[str, Any]) -> None:
    """What runs a person's code or a command may do anything; `check` cannot have a file name any code."""
    tools = answers["tools"]
    harmful = {
        name: (tool.annotations.read_only_hint, tool.annotations.destructive_hint, tool.annotations.open_world_hint)
        for name, tool in tools.items()
    }
    runs, reads = (False, True, True), (True, False, False)
    assert harmful == {
        "run": runs, "dry_run": runs, "check": runs, "probe": reads, "show": reads, "compare": reads,
    }  # fmt: skip
    assert tools["check"].input_schema["properties"].keys() == {"file", "command", "model", "budget"}


OUTSIDE = "expected a file in the project's folder"


def test_outputs_stay_in_the_project(tmp_path: Path) -> None:
    """Paths above it, absolute ones, through links, and of a database: refused before anything runs."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    (folder / "result.html").symlink_to(tmp_path / "page.html")
    places: list[dict[str, Any]] = [
        {"out": "../result.json"}, {"out": str(tmp_path / "result.json")}, {"out": "link/result.json"},
        {"out": "result.json"}, {"storage": f"sqlite:///{tmp_path}/trials.db"}, {"storage": "sqlite:///../trials.db"},
        {"storage": f"sqlite:///file:{str(tmp_path).replace('/', '%2F')}%2Ftrials.db?uri=true"},
    ]  # fmt: skip

    async def use(client: Client) -> Any:
        answers = [await client.call_tool("run", {"model": "no_such:build", **place}) for place in places]
        return [*answers, await client.call_tool("run", {"model": "no_such:build", "out": "inside.json"})]

    *refused, inside = served(folder, use)
    assert all(answer.is_error and OUTSIDE in text_of(answer) for answer in refused)
    assert OUTSIDE not in text_of(inside)
    anywhere = served(
        folder, lambda client: client.call_tool("run", {"model": "no_such:build", **places[0]}), "--out-anywhere"
    )
    assert "no_such" in text_of(anywhere)
    assert OUTSIDE not in text_of(anywhere)


def test_answers_hide_secrets(answers: dict[str, Any]) -> None:
    """As text and as data; a file from elsewhere may hold some."""
    answer = answers["show"]
    assert "abc-4711-xyz" not in text_of(answer) + json.dumps(answer.structured_content)
    assert "the server said: token=*** is old" in answer.structured_content["search"]["notes"]


def test_show_tells_figures_with_intervals_and_how_to_train(answers: dict[str, Any], folder: Path) -> None:
    """As data and as text, with what trainings reached."""
    result, answer = make_result(), answers["why"]
    data = answer.structured_content
    assert result.speedup is not None
    assert data["confirmed"] is True
    assert data["speedup"] == result.speedup.model_dump(mode="json")
    assert data["changes"]["precision"] == ["fp32", "bf16"]
    before = data["baseline"]["measurement"]
    low, high = before["ci95_samples_per_second"]
    assert low < before["samples_per_second"] < high
    assert "blocks" not in before
    assert "autotune.load" in text_of(answer)
    assert "0.97 of the claimed rate" in text_of(answer)
    assert data["file"] == str(folder / "a.json")
    assert len(data["trials"]) == len(result.trials)
    assert "trials" not in answers["show"].structured_content


def test_compare_puts_results_side_by_side(answers: dict[str, Any]) -> None:
    """With the intervals of their rates, as in the file of `compare`."""
    comparison = answers["compare"].structured_content
    (group,) = comparison["groups"]
    assert comparison["schema"] == "autotune.comparison/1"
    assert group["rows"][0]["after_ci95"]
    assert "digits" in text_of(answers["compare"])


def test_errors_are_the_commands_sentences(answers: dict[str, Any], tmp_path: Path) -> None:
    """As errors of the tool, which a model reads."""
    for (_, _, typed), answer in zip(MISTAKES, answers["mistakes"], strict=True):
        assert answer.is_error
        assert " ".join(text_of(answer).split()) in " ".join(run_inside(typed, tmp_path).err.split())


def test_arguments_that_make_no_sense_are_refused(answers: dict[str, Any]) -> None:
    """Nothing is left out in silence."""
    for (_, _, words), answer in zip(SENSELESS, answers["senseless"], strict=True):
        assert answer.is_error
        assert words in text_of(answer)


@pytest.mark.slow
def test_a_machine_is_probed_and_a_model_looked_at(tmp_path: Path) -> None:
    """The machine as a record; what would be tried, each with its reason."""

    async def use(client: Client) -> Any:
        probe = await client.call_tool("probe", {})
        return probe, await client.call_tool("dry_run", {"model": TINY, "only": ["num_workers"]})

    probe, look = served(tmp_path, use)
    assert probe.structured_content["cpu"]["budget"] >= 1
    assert probe.structured_content["files_of_scripts"]["row"] in {"overlay", "landlock", "none"}
    assert "your files: " in text_of(probe)
    assert not look.is_error, text_of(look)
    assert look.structured_content["choices"].keys() == {"num_workers"}
    assert look.structured_content["skipped"]["precision"]


@pytest.mark.slow
def test_a_model_is_tuned_with_progress_and_checked(tmp_path: Path) -> None:
    """Progress grows, names stage and comparison; the answer is the file's; a second run meanwhile is refused."""
    told: list[tuple[float, float | None, str | None]] = []

    async def progress(share: float, total: float | None, message: str | None) -> None:
        told.append((share, total, message))

    async def use(client: Client) -> Any:
        arguments = {"model": TINY, "budget": budget(12), "out": "tiny.json", "pin": {"compile_mode": None}}
        answers: dict[str, Any] = {}

        async def run() -> None:
            answers["run"] = await client.call_tool("run", arguments, progress_callback=progress)

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await anyio.sleep(3)
            answers["second"] = await client.call_tool("run", arguments)
        answers["check"] = await client.call_tool("check", {"file": "tiny.json", "model": TINY, "budget": budget(10)})
        return answers

    answers = served(tmp_path, use)
    assert answers["second"].is_error
    assert "would disturb it; wait for its answer, or cancel it" in text_of(answers["second"])
    assert not answers["run"].is_error, text_of(answers["run"])
    data, result = answers["run"].structured_content, read_result(tmp_path / "tiny.json")
    assert data["status"] == "complete"
    assert data["confirmed"] == confirmed(result)
    assert Path(data["report"]).is_file()
    shares = [share for share, _, _ in told]
    assert len(shares) > 3
    assert shares == sorted(set(shares))
    assert shares[-1] <= 1.0
    assert any("comparing: " in (message or "") for *_, message in told)
    assert any("best so far: " in (message or "") for *_, message in told)
    assert answers["check"].structured_content["verdict"] in {"holds", "undecided", "drifted", "no longer fits"}


@pytest.mark.slow
def test_the_client_of_the_guide_tunes_and_reads_the_answer(tmp_path: Path) -> None:
    """As it stands there, with a budget that a test can wait for."""
    (tmp_path / "train.py").write_text("from tests.workloads.tiny import build\n")
    (tmp_path / "autotune").write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m autotune "$@"\n')
    (tmp_path / "autotune").chmod(0o755)
    client = block("docs/guides/agents.md", "call_tool").replace('"10m"', repr(budget(12)))
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(temporary_of(tmp_path))}
    done = subprocess.run([sys.executable, "-c", client], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("results/*/*.json")
    assert done.stdout.startswith(f"{confirmed(read_result(file))} ")
    assert done.stdout.rstrip().endswith(file.name)
    assert left(tmp_path) == []


@pytest.mark.slow
def test_a_script_is_looked_at_and_tuned(tmp_path: Path) -> None:
    """What it prints is not mistaken for the protocol."""
    (tmp_path / "train.py").write_text(SCRIPT)

    async def use(client: Client) -> Any:
        arguments = {"command": [sys.executable, "train.py"], "only": "num_threads,allocator"}
        look = await client.call_tool("dry_run", arguments)
        return look, await client.call_tool("run", {**arguments, "budget": budget(16), "out": "script.json"})

    look, run = served(tmp_path, use)
    assert not look.is_error, text_of(look)
    assert look.structured_content["seen"]["loaders"][0]["samples"] == 512
    assert "batch_size" in look.structured_content["skipped"]
    assert not run.is_error, text_of(run)
    assert run.structured_content["status"] == "complete"
    assert "diff: " in text_of(run)
    assert read_result(tmp_path / "script.json").workload.script is not None


@pytest.mark.slow
def test_a_cancelled_run_keeps_what_was_measured_and_leaves_nothing(tmp_path: Path) -> None:
    """As Ctrl-C does; the server goes on to serve."""

    async def use(client: Client) -> Any:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "run", {"model": TINY, "budget": "10m", "out": "early.json"})
            while not has_measured(tmp_path / "early.journal"):
                await anyio.sleep(0.1)
            group.cancel_scope.cancel()
        deadline = time.monotonic() + 20 * slowness()
        while not (tmp_path / "early.html").exists():  # it is written last
            assert time.monotonic() < deadline
            await anyio.sleep(0.1)
        return left(tmp_path), await client.call_tool("show", {"file": "early.json"})

    remains, answer = served(tmp_path, use)
    assert remains == []
    assert answer.structured_content["status"] == "partial"
    assert "PARTIAL: tuning was interrupted" in text_of(answer)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "tmp") == [
        "early.html", "early.journal", "early.json",
    ]  # fmt: skip


CLIENT = """
import anyio, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from mcp import Client
from tests.commands.test_mcp import server, TINY
async def main():
    async with Client(server(Path({folder!r}))) as client:
        await client.call_tool("run", {{"model": TINY, "budget": "10m", "out": "lost.json"}})
anyio.run(main)
"""


@pytest.mark.slow
def test_a_killed_client_ends_the_server_and_its_run(tmp_path: Path) -> None:
    """The end of standard input is the end of everything; what was measured is kept."""
    temporary_of(tmp_path)
    client = subprocess.Popen([sys.executable, "-c", CLIENT.format(root=str(ROOT), folder=str(tmp_path))])
    while not has_measured(tmp_path / "lost.journal"):
        assert client.poll() is None
        time.sleep(0.1)
    below = psutil.Process(client.pid).children(recursive=True)
    assert below
    client.kill()
    client.wait()
    _, alive = psutil.wait_procs(below, timeout=20 * slowness())
    assert alive == []
    assert left(tmp_path) == []
    assert read_result(tmp_path / "lost.json").status == "partial"


@pytest.mark.slow
def test_a_signal_to_the_server_keeps_what_was_measured(tmp_path: Path) -> None:
    """A client that stops its server by SIGTERM loses nothing."""
    parameters = server(tmp_path)
    process = subprocess.Popen(
        [parameters.command, *parameters.args], cwd=tmp_path, env={**os.environ, **(parameters.env or {})},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_signals,
    )  # fmt: skip
    assert process.stdin is not None
    begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}
    call = {"name": "run", "arguments": {"model": TINY, "budget": "10m", "out": "ended.json"}}
    for message in (
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
    ):
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
    while not has_measured(tmp_path / "ended.journal"):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 130
    assert left(tmp_path) == []
    assert read_result(tmp_path / "ended.json").stopped_by == "interrupted"
    assert process.stdout is not None
    for line in process.stdout.read().splitlines():  # nothing but the protocol
        assert json.loads(line)["jsonrpc"] == "2.0"


def test_without_the_sdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One sentence on stderr, nothing on stdout."""
    monkeypatch.setattr(mcp_command, "find_spec", lambda _: None)
    finished = run_inside(["mcp"], tmp_path)
    assert (finished.status, finished.out) == (2, "")
    assert "pip install 'mcp>=2.3'" in " ".join(finished.err.split())


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Before anything is served."""
    finished = run_inside(["mcp", "--folder", "nowhere"], tmp_path)
    assert finished.status == 2
    assert "--folder: nowhere cannot be worked in" in finished.err
