"""The tools that an agent calls: commands, with the commands' own options, defaults, errors and output.

An answer holds the text that a terminal would show, and the record as data, without its long fields.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field, ValidationError, WithJsonSchema
from rich.console import Console, RenderableType

from autotune.commands.probe import PROBE_SECONDS, probe_answer
from autotune.errors import AutotuneError, UsageError
from autotune.search.interrupts import Stop
from autotune.search.stopping import Budget
from autotune.secrets import masked_data, masked_text
from autotune.sessions.options import NOT_FOR_AGENTS, OFFERED, Options, repeats, schema_of
from autotune.sessions.outputs import BESIDE
from autotune.terminal.progress import Latest
from autotune.units import parse_duration

if TYPE_CHECKING:
    from autotune.mcp.server import Desk
    from autotune.results.result import Result

ToolAnswer = tuple[dict[str, Any], list[RenderableType]]
"""An answer as data, and as terminal output."""
Call = Callable[[Context[Any, Any], dict[str, Any]], Awaitable[ToolAnswer]]
COLUMNS = 120
"""Width of the tables in an answer. Not tuned; no terminal limits it."""
_SIDE = {"measurement": {"blocks", "telemetry", "looks", "final_loss"}}
_LEFT_OUT: Any = {
    "hardware": True, "software": True, "constraints": True, "workload": {"script", "model"},
    "baseline": _SIDE, "best": _SIDE, "search": {"skipped_knobs"}, "diagnosis": {"before", "after"},
}  # fmt: skip
"""Fields of a result that an answer omits: they are long, or of no use to an agent. The file has them."""
COMMAND = (
    Annotated[
        list[str] | None,
        Field(description="A script instead of a model: the words that a shell would run, such as python, train.py."),
    ],
    None,
)
MODEL = (Annotated[str, Field(description="What to tune: module:build or file.py:build.")], "")
FILE = (Annotated[str, Field(description="A result file.")], ...)
PATHS = (Annotated[list[str], Field(description="Result files, or folders that hold them.")], ...)
_EXPECTED = {
    "command": 'a list of texts, such as ["python", "train.py"]', "model": "a text, such as train:build",
    "file": "the path of a result file", "paths": 'a list of paths, such as ["results"]', "why": "true or false",
}  # fmt: skip
"""What each argument of a fixed type takes; options report it themselves."""
WHY = (
    Annotated[bool, Field(description="Show every burst with its reason, and why each other knob was not searched.")],
    False,
)
READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
"""Hints of a tool that changes nothing, and runs only autotune's own code."""
RUNS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)
"""Hints of a tool that runs the user's code or a command, which may do anything."""


def make_tools(desk: Desk) -> list[Tool]:
    """The tools of a server; all measurements go through its desk."""
    measuring = _Measuring(desk)
    options = {
        name: _argument(name, [] if repeats(field) else field.default)
        for name, field in OFFERED.items()
        if name not in NOT_FOR_AGENTS
    }
    tuning = {"command": COMMAND, "model": MODEL, **options}
    return [
        _tool(
            "probe", "What this machine has, and what limits it: processors, memory, GPUs, and measured peaks.",
            {"device": options["device"]}, measuring.probe, READS,
        ),
        _tool(
            "dry_run",
            "What is seen in a model (a build() function) or a training script, and which settings would be tried "
            "with which values; nothing is tuned. Give either model or command.",
            tuning, measuring.dry_run, RUNS,
        ),
        _tool(
            "run",
            "Tunes a model or a training script within a wall-clock budget, writes a result file and a report, and "
            "reports the confirmed speed-up with its interval. Give either model or command. Takes as long as the "
            "budget; cancelling keeps what was measured by then.",
            tuning, measuring.run, RUNS,
        ),
        _tool("show", "One result file.", {"file": FILE, "why": WHY}, _in_a_thread(_show), READS),
        _tool(
            "check",
            "Whether a result still holds on this machine. Notes of its trainings in the last week may answer, unless "
            "model or command is given; else both sides are trained again, in turn, for a minute.",
            {"file": FILE, "command": COMMAND, "model": MODEL, "budget": _argument("budget", "50s")},
            measuring.check, RUNS,
        ),
        _tool("compare", "Results of the same workload side by side, across machines.", {"paths": PATHS},
              _in_a_thread(_compare), READS),
    ]  # fmt: skip


class _Measuring:
    """The tools that measure."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def probe(self, context: Context[Any, Any], given: dict[str, Any]) -> ToolAnswer:
        """`autotune probe`."""

        def work(_: Latest, stop: Stop) -> ToolAnswer:
            return probe_answer(given["device"], stop)

        return await self._desk.measure(context, "the machine", PROBE_SECONDS, work)

    async def dry_run(self, context: Context[Any, Any], given: dict[str, Any]) -> ToolAnswer:
        """`autotune run --dry-run`, also for models."""
        from autotune.sessions.tuning import Tuning
        from autotune.terminal.look import look_data, look_lines

        options = _options(given, out_anywhere=self._desk.out_anywhere)
        budget = Budget(options.budget_seconds)

        def work(sentence: Latest, stop: Stop) -> Any:
            tuning = Tuning(options, sentence, budget, stop)
            return tuning.look(), tuning.notes

        look, notes = await self._desk.measure(context, options.target, budget.preparing_seconds, work)
        return {**look_data(*look), "notes": notes}, [look_lines(*look), *notes]

    async def run(self, context: Context[Any, Any], given: dict[str, Any]) -> ToolAnswer:
        """`autotune --model` and `autotune run`."""
        from autotune.commands.patch import after_run
        from autotune.sessions.tuning import tune_and_save

        options = _options(given, out_anywhere=self._desk.out_anywhere)
        budget = Budget(options.budget_seconds)

        def work(sentence: Latest, stop: Stop) -> Any:
            saved, patched = tune_and_save(options, sentence, budget, stop), None
            if saved.path is not None and saved.failure is None:
                patched, _ = after_run(saved.result, saved.path, patching=False)
            return saved, patched, *saved.write_page()

        saved, patched, page, why_none = await self._desk.measure(context, options.target, budget.seconds, work)
        data, shown = _result_answer(saved.result, saved.path, page)
        shown += [patched] if patched is not None else []
        return data, [*shown, *(str(problem) for problem in (saved.failure, why_none) if problem is not None)]

    async def check(self, context: Context[Any, Any], given: dict[str, Any]) -> ToolAnswer:
        """`autotune check`."""
        from autotune.results.result import read_result
        from autotune.sessions.checking import check_result
        from autotune.sessions.trust import trained_by
        from autotune.terminal.console import check_lines

        file = Path(given["file"])
        result = read_result(file)
        command = given["command"] or ()
        target = trained_by(result.workload, file, model=given["model"], command=command, trust=False)
        budget = Budget(parse_duration(str(given["budget"])))
        await context.report_progress(0.0, 1.0, f"what runs: {target}")

        notes = None if given["model"] or command else file  # a workload that the agent names is always measured

        def work(sentence: Latest, stop: Stop) -> Any:
            return check_result(result, target, budget, sentence, stop, file=notes)

        record = await self._desk.measure(context, str(target), budget.seconds, work)
        return record.model_dump(mode="json"), [check_lines(record)]


def _in_a_thread(work: Callable[[dict[str, Any]], ToolAnswer]) -> Call:
    """Runs a tool that reads files in a thread, so that it does not delay progress reports."""

    async def call(_context: Context[Any, Any], given: dict[str, Any]) -> ToolAnswer:
        return await anyio.to_thread.run_sync(work, given)

    return call


def _show(given: dict[str, Any]) -> ToolAnswer:
    from autotune.results.result import read_result

    file = Path(given["file"])
    result, page = read_result(file), file.with_suffix(".html")
    return _result_answer(result, file, page if page.is_file() else None, why=given["why"])


def _compare(given: dict[str, Any]) -> ToolAnswer:
    from autotune.results.compare import compare, require_rows
    from autotune.results.gather import gather
    from autotune.terminal.comparison import comparison_table

    comparison = compare(gather([Path(path) for path in given["paths"]]))
    try:
        require_rows(comparison)
    except AutotuneError as error:
        raise type(error)("; ".join([str(error), *comparison.problems])) from None
    return comparison.model_dump(mode="json", by_alias=True), [comparison_table(comparison)]


def _result_answer(result: Result, path: Path | None, page: Path | None, *, why: bool = False) -> ToolAnswer:
    """The answer for a result; `why` adds every burst."""
    from autotune.terminal.console import profile_tables, result_table, training_lines, trials_table, usage_lines

    diff = path.with_suffix(".diff") if path is not None and result.workload.script is not None else None
    places = {"file": path, "report": page, "diff": diff if diff is not None and diff.is_file() else None}
    data = result.model_dump(mode="json", by_alias=True, exclude=_LEFT_OUT | ({} if why else {"trials": True}))
    data |= {name: str(place.resolve()) if place is not None else None for name, place in places.items()}
    data |= {"confirmed": result.speedup is not None and result.speedup.confirmed, "changes": result.changed_knobs}
    bursts = [trials_table(result), profile_tables(result)] if why else []
    usage = [training_lines(result, path), usage_lines(result, path, page)] if path is not None else []
    return data, [result_table(result), *bursts, *usage]


def _options(given: dict[str, Any], *, out_anywhere: bool) -> Options:
    """The options of a tuning, from a tool's arguments.

    Raises:
        UsageError: The arguments name neither or both of a model and a command, or an option is invalid, or a file
            would be written outside the working directory.
    """
    from autotune.scripts.script import Script

    command, model = given.pop("command"), given.pop("model")
    if (not command) == (not model):
        raise UsageError(f"expected either model ({_EXPECTED['model']}), or command ({_EXPECTED['command']}); pass one")
    script = Script.of(command) if command else None
    what = {"target": model} if script is None else {"target": script.text, "script": script.command}
    options = Options.parse(given, **what)
    if out_anywhere:
        return options
    if options.out is not None:
        _require_inside("--out", options.out, *map(options.out.with_suffix, BESIDE))
    if options.storage is not None:
        from autotune.search.storage import sqlite_file  # here: optuna takes long to import

        _require_inside("--storage", *filter(None, [sqlite_file(options.storage)]))
    return options


def _require_inside(option: str, *places: Path) -> None:
    """Refuses paths outside the working directory, after following links.

    Raises:
        UsageError: A path is outside.
    """
    folder = Path.cwd().resolve()
    for place in places:
        if not place.resolve().is_relative_to(folder):
            raise UsageError(
                f"{option}: expected a file in the project's folder {folder}, got {place}; name one there, or have a "
                "person start the server with --out-anywhere"
            )


def _argument(name: str, default: Any) -> tuple[Any, Any]:
    """An option as an argument of any type, so that errors come from the command rather than from the protocol."""
    return Annotated[Any, WithJsonSchema(schema_of(name) | {"default": default})], default


def _tool(
    name: str, meaning: str, arguments: Mapping[str, tuple[Any, Any]], call: Call, hints: ToolAnnotations
) -> Tool:
    """A tool that refuses unknown arguments, instead of ignoring them.

    Args:
        name: Its name.
        meaning: Its description, for the agent.
        arguments: The type and the default of each; ``...`` for none.
        call: The function that it runs.
        hints: Tell a client whether to ask the user before a call.
    """

    async def tool(context: Context[Any, Any], **given: Any) -> CallToolResult:
        try:
            data, shown = await call(context, given)
        except AutotuneError as error:  # with the user's own frames if their code raised
            trace = getattr(error, "trace", None)
            return CallToolResult(content=[_content(f"{error}\n\n{trace}" if trace else str(error))], is_error=True)
        console = Console(file=io.StringIO(), width=COLUMNS, color_system=None, force_terminal=False, highlight=False)
        console.print(*shown, sep="\n", markup=False, crop=False)  # lines to copy stay whole
        text = console.file.getvalue()  # type: ignore[attr-defined]
        return CallToolResult(content=[_content(text)], structured_content=masked_data(data))

    keyword, empty = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    named = [
        inspect.Parameter(argument, keyword, annotation=kind, default=empty if default is ... else default)
        for argument, (kind, default) in arguments.items()
    ]
    first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Context)
    tool.__signature__ = inspect.Signature([first, *named], return_annotation=CallToolResult)  # type: ignore[attr-defined]
    tool.__annotations__ = {"context": Context}
    made = _Tool.from_function(tool, name=name, description=meaning, annotations=hints)
    made.fn_metadata.arg_model.model_config["extra"] = "forbid"
    made.fn_metadata.arg_model.model_rebuild(force=True)
    made.parameters = made.fn_metadata.arg_model.model_json_schema(by_alias=True)
    return made


class _Tool(Tool):
    """A tool that refuses wrong arguments in the style of the commands."""

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> Any:
        """Runs the tool."""
        try:
            self.fn_metadata.validate_arguments(arguments)
        except ValidationError as error:
            return CallToolResult(content=[_content(self._refusal(error, arguments))], is_error=True)
        return await super().run(arguments, context, convert_result)

    def _refusal(self, error: ValidationError, arguments: Mapping[str, Any]) -> str:
        names = self.parameters["properties"]
        if unknown := [name for name in arguments if name not in names]:
            return f"{self.name} has no argument {unknown[0]}; pass only {', '.join(names)}"
        name = str(error.errors()[0]["loc"][0])
        got = f"{arguments[name]!r:.60}" if name in arguments else "none"
        return f"{name}: expected {_EXPECTED[name]}, got {got}; pass one"


def _content(text: str) -> TextContent:
    return TextContent(text=masked_text(text.rstrip()))
