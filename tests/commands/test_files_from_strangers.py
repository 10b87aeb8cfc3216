"""Files that anyone may have written: every command that reads one ends well, or in a sentence of ours."""

from __future__ import annotations

import contextlib
import copy
import json
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import autotune
from autotune.cli import app
from autotune.errors import AutotuneError, ResultFileError
from autotune.measuring.records import Burst, Outcome, Point
from autotune.results.cross_file import Cross
from autotune.results.files import read_document
from autotune.results.result import Result
from autotune.search.warm_start import candidates, read_results, records
from autotune.sessions import crossing
from tests.broken import json_values, leaves
from tests.crosses import make_cross, on_gpu
from tests.factories import make_burst, make_hardware, make_result
from tests.report.samples import full_result
from tests.spaces import cpu_machine, gpu_machine, make_facts, space_of

EXAMPLES = 12
SECONDS = 10.0
"""Of computing, for all commands on one file: one or two are usual, but the first one imports torch and matplotlib."""
STRANGE = st.sampled_from(
    [10**400, -(10**400), 2**63, -1, 0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"), True, None,
     "", "\ud800", "caf\udce9/x", "\x1b[2J\x00\x07", "]]>\u202e<svg onload=1>", "cuda:99", "a" * 10_000, [], {}, [[]],
     {"\udfff": "\udfff"}, "1e999", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", -62135596800, "../../x"]
)  # fmt: skip


def whole(result: Any) -> Any:
    """A document as decoded JSON."""
    return json.loads(result.model_dump_json(by_alias=True))


RESULT, CROSS, BESIDE = whole(full_result()), whole(make_cross(on_gpu())), whole(make_result())
TEXTS = ["", "\ud800", "caf\udce9/x", "\x1b[2J\x00\x07\x85", "]]>\u202e<svg>|`$x^2$", "a" * 10_000, "[/b]", "=1"]
FIGURES = [0, 0.0, 1, 1e-30, 1e-9, 0.5, 1e9, 2**31 - 1, 2**53, 1e24, -1]


def alike(value: Any) -> st.SearchStrategy[Any]:
    """Another value of the same type, at the ends of what is allowed: such files are read, and then used."""
    if isinstance(value, bool):
        return st.just(not value)
    if isinstance(value, (int, float)):
        return st.sampled_from(FIGURES)
    if isinstance(value, str):
        return st.sampled_from(TEXTS)
    if isinstance(value, list):
        return st.sampled_from([[], value[:1], value * 20])
    return st.sampled_from([{}, dict(zip(TEXTS, (value or {}).values(), strict=False)), 1, "1"])


Change = tuple[tuple[Any, ...], str, Any]
"""Where, what is done there, and with which value."""


def changes(data: Any) -> st.SearchStrategy[list[Change]]:
    """One to three things that are wrong: a value replaced, a key dropped or added, a part nested."""

    def change(place: tuple[Any, ...]) -> st.SearchStrategy[Change]:
        value = data
        for step in place:
            value = value[step]
        return st.one_of(
            *[st.tuples(st.just(place), st.just("put"), alike(value))] * 4,
            st.tuples(st.just(place), st.just("put"), STRANGE | json_values),
            st.tuples(st.just(place), st.just("add"), STRANGE),
            st.tuples(st.just(place), st.just("drop"), st.none()),
            st.tuples(st.just(place), st.just("nest"), st.sampled_from([1, 50, 400])),
        )

    return st.lists(st.sampled_from(leaves(data)[1:]).flatmap(change), min_size=1, max_size=3)


def changed(data: Any, made: list[Change]) -> Any:
    """A copy with the changes made, as far as an earlier one has left their places."""
    found = copy.deepcopy(data)
    for (*above, key), what, value in made:
        parent = found
        with contextlib.suppress(LookupError, TypeError):
            for step in above:
                parent = parent[step]
            if what == "put":
                parent[key] = value
            elif what == "drop":
                del parent[key]
            elif what == "add":
                parent[key]["\ud800 novel"] = value
            else:
                for _ in range(value):
                    parent[key] = [parent[key]]
    return found


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a sub-command in this process, in a folder of its own; nothing but our own endings is let pass."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("def build(): ...\n")
    runner = CliRunner()

    def invoke(*arguments: str) -> None:
        # `check` and `cross`: their budget counts from the start of their process.
        monkeypatch.setattr("autotune.commands.check.STARTED", time.monotonic())
        done = runner.invoke(app, list(arguments))
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise AssertionError(f"{arguments[0]} ended in a traceback") from done.exception
        assert done.exit_code in {0, 1, 2, 3}, done.output
        if done.exit_code == 2:
            assert done.output

    class Runs:
        """Bursts that end at once: a few well, then none."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self.left = 6

        def check(self, *_: Any) -> Any:
            return make_facts()

        def run(self, point: Point, *_: Any) -> Burst:
            self.left -= 1
            if self.left < 0:
                return Burst(point=point, outcome=Outcome.CRASHED, reason="no more", seconds=0.1)
            return make_burst(1000.0, seed=self.left).model_copy(update={"point": point, "seconds": 0.1})

        def play(self, points: Sequence[Point], *_: Any) -> list[Burst]:
            return [self.run(point) for point in points]

    @contextlib.contextmanager
    def no_process(*_: Any, **__: Any) -> Any:
        yield SimpleNamespace()

    monkeypatch.setattr(crossing, "opened", no_process)
    monkeypatch.setattr(crossing, "make_runner", Runs)
    monkeypatch.setattr(crossing, "look_at_machine", lambda *_, **__: make_hardware())
    return invoke


def write(folder: Path, data: Any, name: str = "a.json") -> Path:
    """As a program would write it that does not care for Unicode."""
    path = folder / name
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def every_command(command: Callable[..., None], file: str) -> None:
    """All that read a result from its file."""
    command("show", file)
    command("show", file, "--json")
    command("show", file, "--why")
    command("report", file)
    for form in ("table", "md", "csv", "json", "html"):
        command("compare", file, "--format", form)
    command("check", file, "--quiet", "--json")
    command("cross", file, "--against", file, "--device", "cpu", "--out", "cross.json", "--json")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for read in (load, warm_start):
            with contextlib.suppress(AutotuneError):
                read(file)


def load(file: str) -> None:
    """As a training script does."""
    assert autotune.load(file, device="cpu").batch_size


def warm_start(file: str) -> None:
    """As a search on another machine does."""
    for machine, device in ((cpu_machine(), "cpu"), (gpu_machine(), "cuda")):
        for effective in (32, None):
            space = space_of(machine, device=device, effective_batch=effective)
            found = candidates(
                read_results([Path(file)]), space, machine, fingerprint="a1b2c3", device=device,
                memory_limit_bytes=2**33,
            )  # fmt: skip
            base = Point(config=space.baseline)
            assert len(records(found, [], base, base)) == 1


def check_every_command(command: Callable[..., None], data: Any) -> None:
    """All commands on one file, in time."""
    file = write(Path.cwd(), data)
    began = time.process_time()
    try:
        read_document(file, Result)
    except ResultFileError:
        command("show", file.name)  # all read alike
    else:
        every_command(command, file.name)
    assert time.process_time() - began < SECONDS


FUZZ = settings(
    deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


@settings(FUZZ, max_examples=EXAMPLES)
@given(changes(RESULT))
def test_no_result_file_ends_a_command_in_a_traceback(command: Callable[..., None], made: list[Change]) -> None:
    """Types changed, figures beyond all measure, text that is no Unicode, keys dropped and added, parts nested."""
    check_every_command(command, changed(RESULT, made))


@pytest.mark.slow
@settings(FUZZ, max_examples=5 * EXAMPLES, derandomize=False)
@given(changes(RESULT))
def test_no_result_file_of_many_ends_a_command_in_a_traceback(command: Callable[..., None], made: list[Change]) -> None:
    """The same with other files each time."""
    check_every_command(command, changed(RESULT, made))


@settings(FUZZ, max_examples=EXAMPLES)
@given(changes(CROSS))
def test_no_cross_file_ends_a_comparison_in_a_traceback(command: Callable[..., None], made: list[Change]) -> None:
    """Beside the result of its machine, and alone."""
    file = write(Path.cwd(), changed(CROSS, made), "cross.json")
    try:
        read_document(file, Cross)
    except ResultFileError:
        command("show", file.name)
        return
    write(Path.cwd(), BESIDE, "result.json")
    for form in ("table", "md", "csv", "json", "html"):
        command("compare", ".", "--format", form)


def test_the_unharmed_file_passes_every_command(command: Callable[..., None]) -> None:
    """Else the others would show nothing."""
    file = write(Path.cwd(), RESULT)
    every_command(command, file.name)
    for name in ("a.html", "cross.json"):
        assert Path(name).is_file()
