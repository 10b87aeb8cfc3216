"""The tools that an agent calls: commands, with the commands' own options, defaults and errors."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field
from rich.console import RenderableType

from autotune.commands import mcp_answers, shared_options
from autotune.commands.check import check as check_command
from autotune.commands.mcp_answers import Answer, plain
from autotune.commands.outputs import BESIDE
from autotune.commands.parameters import Parameter, parameters_of, typed
from autotune.commands.probe import PROBE_SECONDS, probed
from autotune.commands.probe import probe as probe_command
from autotune.commands.run import run as run_command
from autotune.commands.show import show as show_command
from autotune.commands.tune import tune as tune_command
from autotune.errors import AutotuneError, UsageError
from autotune.search.interrupts import Stop
from autotune.search.stopping import Budget
from autotune.secrets import masked_data, masked_text
from autotune.terminal.sentence import Sentence
from autotune.units import parse_duration

if TYPE_CHECKING:
    from autotune.commands.mcp_server import Desk
    from autotune.commands.options import Options

Said = tuple[Answer, RenderableType]
"""An answer as data, and as a terminal would show it."""
Call = Callable[[Context[Any, Any], dict[str, Any]], Awaitable[Said]]
MODEL_OPTIONS = parameters_of(tune_command)
PERSONS = frozenset({"trust", "writable", "network"})
"""Options of the command line alone: an agent may name what runs, as its client shows, but lift no protection."""
SCRIPT_OPTIONS = parameters_of(run_command, without={"command", "dry_run", "keep", *PERSONS})
CHECK_OPTIONS = parameters_of(check_command, without={"file", "command", *PERSONS})
SHOW_OPTIONS = parameters_of(show_command, without={"file"})
PROBE_OPTIONS = parameters_of(probe_command)
Words = Annotated[
    list[str] | None, Field(description="A script instead of a model: the words that run it, such as python, train.py.")
]
File = Annotated[str, Field(description="A result file.")]
Paths = Annotated[list[str], Field(description="Result files, or folders that hold them.")]
READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
"""A tool with these hints changes nothing, and runs autotune's own code only."""
RUNS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)
"""A tool with these hints runs a person's code or a command, which may do anything."""
_KINDS: dict[str, Any] = {
    "text": str | int | float | list[str] | None,
    "texts": list[str] | dict[str, Any] | None,
    "path": str | None,
    "paths": list[str] | None,
    "switch": bool,
}


def make_tools(desk: Desk) -> list[Tool]:
    """The tools of a server; what they measure goes through its desk."""
    tuning = {"command": (Words, None), **_arguments(MODEL_OPTIONS)}
    return [
        _tool(
            "probe", "What this machine has, and what limits it: processors, memory, GPUs, and measured peaks.",
            _arguments(PROBE_OPTIONS), _Measuring(desk).probe, mcp_answers.ProbeAnswer, READS,
        ),
        _tool(
            "dry_run",
            "What is seen in a model (a build() function) or a training script, and which settings would be tried "
            "with which values; nothing is tuned. Give either model or command.",
            tuning, _Measuring(desk).dry_run, mcp_answers.DryRunAnswer, RUNS,
        ),
        _tool(
            "run",
            "Tunes a model or a training script within a wall-clock budget, writes a result file and a report, and "
            "tells the confirmed speed-up with its interval. Give either model or command. Takes as long as the "
            "budget; cancelling keeps what was measured by then.",
            tuning, _Measuring(desk).run, mcp_answers.ResultAnswer, RUNS,
        ),
        _tool("show", "One result file.", {"file": (File, ...), **_arguments(SHOW_OPTIONS)}, _show,
              mcp_answers.ResultAnswer, READS),
        _tool(
            "check", "Whether a result still holds on this machine: trains both sides again, in turn, for a minute.",
            {"file": (File, ...), "command": (Words, None), **_arguments(CHECK_OPTIONS)},
            _Measuring(desk).check, mcp_answers.CheckAnswer, RUNS,
        ),
        _tool("compare", "Results of the same workload side by side, across machines.", {"paths": (Paths, ...)},
              _compare, mcp_answers.CompareAnswer, READS),
    ]  # fmt: skip


class _Measuring:
    """The tools that measure."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def probe(self, context: Context[Any, Any], given: dict[str, Any]) -> Said:
        """`autotune probe`."""
        from autotune.terminal.console import hardware_table

        device = typed(PROBE_OPTIONS, given)["device"]

        def work(_: Sentence, stop: Stop) -> Any:
            return probed(device, stop)

        hardware = await self._desk.measure(context, "the machine", PROBE_SECONDS, work)
        return mcp_answers.of_probe(hardware), hardware_table(hardware)

    async def dry_run(self, context: Context[Any, Any], given: dict[str, Any]) -> Said:
        """`autotune run --dry-run`, of models too."""
        from autotune.commands.tuning import Tuning

        wanted = _wanted(given, out_anywhere=self._desk.out_anywhere)
        budget = Budget(wanted.budget_seconds)

        def work(told: Sentence, stop: Stop) -> Any:
            tuning = Tuning(wanted, told, budget, stop)
            return *tuning.look(), tuning.notes

        found = mcp_answers.of_look(*await self._desk.measure(context, wanted.target, budget.preparing_seconds, work))
        return found, _look_text(found)

    async def run(self, context: Context[Any, Any], given: dict[str, Any]) -> Said:
        """`autotune --model` and `autotune run`."""
        from autotune.commands.keep import after_run
        from autotune.commands.saving import tune_and_save
        from autotune.terminal.console import result_table

        wanted = _wanted(given, out_anywhere=self._desk.out_anywhere)
        budget = Budget(wanted.budget_seconds)

        def work(told: Sentence, stop: Stop) -> Any:
            saved = tune_and_save(wanted, told, budget, stop)
            if saved.path is not None and saved.failure is None:
                after_run(saved.result, saved.path, keeping=False)
            return saved, *saved.write_page()

        saved, page, why_none = await self._desk.measure(context, wanted.target, budget.seconds, work)
        notes = [str(told) for told in (saved.failure, why_none) if told is not None]
        return mcp_answers.of_result(saved.result, saved.path, page, notes=notes), result_table(saved.result)

    async def check(self, context: Context[Any, Any], given: dict[str, Any]) -> Said:
        """`autotune check`."""
        from autotune.commands.checking import check_result
        from autotune.commands.trust import trained_by
        from autotune.results.result import read_result
        from autotune.terminal.console import check_lines

        file, command = Path(given.pop("file")), given.pop("command", None)
        options = typed(CHECK_OPTIONS, given)
        result = read_result(file)
        target = trained_by(result.workload, file, model=options["model"], command=command or (), trust=False)
        budget = Budget(parse_duration(options["budget"]))
        await context.report_progress(0.0, 1.0, f"what runs: {target}")

        notes = None if options["model"] or command else file  # what the agent names is measured

        def work(told: Sentence, stop: Stop) -> Any:
            return check_result(result, target, budget, told, stop, file=notes)

        found = await self._desk.measure(context, str(target), budget.seconds, work)
        return mcp_answers.of_check(found, file), check_lines(found)


async def _show(_context: Context[Any, Any], given: dict[str, Any]) -> Said:
    """`autotune show`; files are read in a thread, so that words of progress are not held up."""
    return await anyio.to_thread.run_sync(_shown, given)


async def _compare(_context: Context[Any, Any], given: dict[str, Any]) -> Said:
    """`autotune compare`."""
    return await anyio.to_thread.run_sync(_compared, given)


def _shown(given: dict[str, Any]) -> Said:
    from autotune.results.result import read_result
    from autotune.terminal.console import result_table
    from autotune.terminal.trials import trials_table

    file = Path(given.pop("file"))
    why = typed(SHOW_OPTIONS, given)["why"]
    result = read_result(file)
    page = file.with_suffix(".html")
    found = mcp_answers.of_result(result, file, page if page.is_file() else None, bursts=why)
    return found, trials_table(result) if why else result_table(result)


def _compared(given: dict[str, Any]) -> Said:
    from autotune.results.compare import compare, require_rows
    from autotune.results.gather import gather
    from autotune.terminal.comparison import comparison_table

    comparison = compare(gather([Path(path) for path in given["paths"]]))
    try:
        require_rows(comparison)
    except AutotuneError as error:
        raise type(error)("; ".join([str(error), *comparison.problems])) from None
    return mcp_answers.of_comparison(comparison), comparison_table(comparison)


def _wanted(given: dict[str, Any], *, out_anywhere: bool) -> Options:
    """What to tune, as it was asked for.

    Raises:
        UsageError: Neither or both of a model and a command are named, or an option is invalid, or a file is to be
            written outside the working directory.
    """
    wanted = _parsed(given)
    if out_anywhere:
        return wanted
    if wanted.out is not None:
        _require_inside("--out", wanted.out, *map(wanted.out.with_suffix, BESIDE))
    if wanted.storage is not None:
        from autotune.search.storage import sqlite_file  # here: optuna takes long to import

        _require_inside("--storage", *filter(None, [sqlite_file(wanted.storage)]))
    return wanted


def _require_inside(option: str, *places: Path) -> None:
    """Refuses places outside the working directory, links followed.

    Raises:
        UsageError: One of them lies elsewhere.
    """
    folder = Path.cwd().resolve()
    for place in places:
        if not place.resolve().is_relative_to(folder):
            raise UsageError(
                f"{option}: expected a file in the project's folder {folder}, got {place}; name one there, or have a "
                "person start the server with --out-anywhere"
            )


def _parsed(given: dict[str, Any]) -> Options:
    """The options of a model or of a command.

    Raises:
        UsageError: Neither or both of them are named, or an option is invalid.
    """
    command = given.pop("command", None)
    if (not command) == (not given.get("model")):
        raise UsageError("expected either model, such as train:build, or command, such as python train.py; pass one")
    if not command:
        options = typed(MODEL_OPTIONS, given)
        return shared_options.options_of(target=options.pop("model"), **options)
    left = {name: value for name, value in given.items() if value != MODEL_OPTIONS[name].default}
    if foreign := [name for name in left if name not in SCRIPT_OPTIONS]:
        raise UsageError(f"--{foreign[0]} is for models, and a command was given; leave it out")
    return shared_options.script_options(command, **typed(SCRIPT_OPTIONS, left))


def _look_text(found: mcp_answers.DryRunAnswer) -> str:
    """What would be tried, a line a setting."""
    tried = (f"  {knob}: {', '.join(map(str, of.values))} ({of.reason})" for knob, of in found.would_try.items())
    left = (f"  {knob}: {why}" for knob, why in found.would_leave.items())
    return "\n".join(["would be tried", *tried, "would be left as it is", *left])


def _arguments(parameters: Mapping[str, Parameter]) -> dict[str, tuple[Any, Any]]:
    """The options of a command as arguments of a tool: the type with what it means, and the default."""
    return {
        name: (Annotated[_KINDS[one.kind], Field(description=f"{one.help} {one.sample}".strip())], one.default)
        for name, one in parameters.items()
    }


def _tool(
    name: str,
    meaning: str,
    arguments: Mapping[str, tuple[Any, Any]],
    call: Call,
    answer: type[Answer],
    hints: ToolAnnotations,
) -> Tool:
    """A tool; one that does not know an argument says so, instead of leaving it out.

    Args:
        name: Its name.
        meaning: What it does.
        arguments: The type and the default of each; ``...`` for none.
        call: What it does.
        answer: What comes of it.
        hints: What a client may ask a person before it calls it.
    """

    async def tool(context: Context[Any, Any], **given: Any) -> CallToolResult:
        try:
            found, shown = await call(context, given)
        except AutotuneError as error:
            return _refused(error)
        text = "\n".join([found.answer, "", plain(shown).rstrip(), "", "next:", *(f"- {todo}" for todo in found.next)])
        data = masked_data(found.model_dump(mode="json", by_alias=True))
        return CallToolResult(content=[TextContent(text=masked_text(text))], structured_content=data)

    keyword, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    named = [
        inspect.Parameter(one, keyword, annotation=kind, default=empty if default is ... else default)
        for one, (kind, default) in arguments.items()
    ]
    first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Context)
    returned = Annotated[CallToolResult, answer]
    tool.__signature__ = inspect.Signature([first, *named], return_annotation=returned)  # type: ignore[attr-defined]
    tool.__annotations__ = {"context": Context}
    made = Tool.from_function(tool, name=name, description=meaning, annotations=hints)
    made.fn_metadata.arg_model.model_config["extra"] = "forbid"
    made.fn_metadata.arg_model.model_rebuild(force=True)
    made.parameters = made.fn_metadata.arg_model.model_json_schema(by_alias=True)
    return made


def _refused(error: AutotuneError) -> CallToolResult:
    """An error with the command's own sentence, and the user's own frames where their code raised."""
    trace = getattr(error, "trace", None)
    text = f"{error}\n\n{trace}" if trace else str(error)
    return CallToolResult(content=[TextContent(text=text)], is_error=True)
