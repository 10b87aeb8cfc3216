"""Every option has a range, checked where it is read: one sentence says what was expected, what it got, what to do."""

from __future__ import annotations

import re
import time

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from autotune.cli import app
from autotune.errors import ConfigError, UsageError
from autotune.knobs.constraints import check_constraints
from autotune.measuring.objective import OBJECTIVES
from autotune.sessions import options

DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--effective-batch", "99999999999999999999999999"], "from 1 to 2147483647"),
        (["--effective-batch", DIGITS], "from 1 to 2147483647"),
        (["--effective-batch", "0"], "from 1 to 2147483647 or 'free', got '0'"),
        (["--budget", "9999999999h"], "30d at most"),
        (["--budget", DIGITS], "30d at most"),
        (["--seed", "-1"], "from 0 to 4294967295"),
        (["--seed", str(2**64)], "from 0 to 4294967295"),
        (["--seed", DIGITS], "from 0 to 4294967295"),
        (["--seed", "²"], "from 0 to 4294967295"),
        (["--pin", "num_workers<=many"], "num_workers="),
        (["--pin", "precision<=bf16"], "expected a whole number after precision<=, got 'bf16'"),
        (["--pin", "num_threads<=2"], "num_threads<=2 limits nothing: torch chooses the number itself"),
        (["--pin", "nccl_max_ctas<=8"], "pin nccl_max_ctas=8"),
        (["--pin", "num_workers<4"], "expected knob=value, or knob<=number, got 'num_workers<4'"),
        (["--pin", "num_workers>=1"], "expected knob=value, or knob<=number, got 'num_workers>=1'"),
        (["--pin", "num_workers=8", "--pin", "num_workers<=4"], "expected num_workers once, got it twice"),
        (["--explore", "x=1", "--explore", "x=2"], "expected x once, got it twice"),
        (["--storage", "/tmp/t.db"], "URL of a database, such as sqlite:///trials.db, got '/tmp/t.db'; pass one"),
        (["--storage", "foo://me:s3cret@host"], "sqlite:///trials.db, got 'foo://'…; pass one"),
        (["--storage", "me:s3cret@host"], "sqlite:///trials.db, got another text; pass one"),
        (["--only", ","], "--only: expected names of knobs separated by commas, got ','"),
        (
            ["--pin", f"num_workers<={10**9}"],
            "num_workers=1000000000 cannot be used: expected less than or equal to 4096",
        ),
        (["--memory-target", "0"], "--memory-target: expected a fraction above 0"),
        (["--memory-target", "1.5"], "--memory-target: expected a fraction above 0"),
        (["--memory-target", "nan"], "--memory-target: expected a fraction above 0"),
        (["--memory-target", "1e-300"], "from 0.01 to 1"),
        (["--utilization-target", "inf"], "--utilization-target: expected a fraction above 0"),
        (["--utilization-target", "much"], "--utilization-target: expected a fraction such as"),
        (["--explore", "x=" + ",".join(map(str, range(5000)))], "expected 64 values at most, got 5000"),
        (["--explore", f"x={DIGITS}"], "200 characters at most"),
        (["--explore", f"{'x' * 300}=1"], "200 characters at most"),
        (["--pin", f"batch_size={DIGITS}"], "200 characters at most"),
        (["--pin", f"batch_size={10**30}"], "batch_size="),
        (["--pin", "num_workers=1000000"], "num_workers=1000000 cannot be used: expected less than or equal to 4096"),
        (
            ["--pin", "num_threads=2147483647"],
            "num_threads=2147483647 cannot be used: expected less than or equal to 4096",
        ),
        (["--pin", "prefetch_factor=2147483647"], "expected less than or equal to 1024"),
        (["--pin", "batch_size=nan"], "batch_size='nan'"),
        (["--dollars-per-hour", "free"], "expected dollars an hour"),
        (["--dollars-per-hour", "0"], "expected dollars an hour"),
        (["--dollars-per-hour", "nan"], "expected dollars an hour"),
        (["--objective", "speed"], "--objective: expected one of samples_per_second, samples_per_joule, got 'speed'"),
        (["--device", "tpu"], "--device: expected one of cpu, cuda, rocm, mps, got 'tpu'"),
        (["--nproc-per-node", "257"], "expected a whole number from 1 to 256 or 'auto', got '257'"),
        (["--at-least", "0.95"], "pass --objective samples_per_joule"),
        (["--objective", "samples_per_joule", "--at-least", "2"], "--at-least: expected"),
        (["--machine-name", "x" * 61], "60 characters at most"),
    ],
)
def test_what_is_out_of_range_is_refused_in_one_sentence(arguments: list[str], words: str) -> None:
    """At once, with status 2, before the model is even looked for; a sentence is no page."""
    began = time.monotonic()
    result = CliRunner().invoke(app, ["--model", "nowhere:build", *arguments])
    told = " ".join(result.output.split())
    assert result.exit_code == 2, told
    assert words in told
    assert len(told) < 400
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("name", "typed", "field", "value"),
    [
        ("effective_batch", "free", "effective_batch", "free"),
        ("effective_batch", "2147483647", "effective_batch", 2**31 - 1),
        ("seed", "4294967295", "seed", 2**32 - 1),
        ("memory_target", "1%", "memory_target", 0.01),
        ("pin", ["num_workers=4096"], "pinned", {"num_workers": 4096}),
        ("pin", ["num_workers <= 4"], "pinned", {"num_workers": "<=4"}),
        ("pin", ["compile_mode=none"], "pinned", {"compile_mode": None}),
        ("pin", [], "pinned", {}),
        ("only", [], "only", None),
        ("machine_name", " ", "machine_name", None),
        ("join", " ", "join", None),
        ("dollars_per_hour", "$2.49", "dollars_per_hour", 2.49),
        ("nproc_per_node", "auto", "ranks", "auto"),
        ("explore", ["x=" + ",".join(map(str, range(64)))], "explored", {"x": tuple(range(64))}),
    ],
)
def test_the_ends_of_a_range_are_in_it(name: str, typed: object, field: str, value: object) -> None:
    """What is absurd begins beyond."""
    assert getattr(options.Options.parse({name: typed}, target="a:b"), field) == value


@pytest.mark.parametrize(("text", "samples"), [("90M", 90_000_000), ("1.2e9", 1_200_000_000), ("", None)])
def test_a_number_of_samples_may_have_a_unit(text: str, samples: int | None) -> None:
    """As people write it."""
    assert options.read(options.Samples, "samples", text) == samples


def test_help_shows_choices_and_ranges() -> None:
    """Of every option that has some, from the model itself; an objective that there is can be chosen."""
    told = "".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output.split())
    assert "cpu|cuda|rocm|mps" in told
    assert "From0to4294967295." in told
    assert "|".join(objective.name for objective in OBJECTIVES) in told


def test_short_options_mean_the_same_everywhere() -> None:
    """Every command that has a budget, a file to write, a model or silence has its short form, and none twice."""
    group = get_command(app)
    for command in (group, *group.commands.values()):  # type: ignore[attr-defined]
        words = [word for parameter in command.params for word in parameter.opts]
        assert len(words) == len({*words}), command.name
        for name, short in options.SHORT.items():
            assert (short in words) == (options.option_of(name) in words), (command.name, name)


def test_help_of_a_script_says_what_free_changes() -> None:
    """A number is refused for a script, so that none is offered."""
    told = " ".join(re.sub("[│╭╮╰╯─]", "", CliRunner().invoke(app, ["run", "--help"]).output).split())
    assert re.search(r"--effective-batch free Try other batch sizes", told)
    assert all(option in told for option in ("--writable PATH", "--objective", "--at-least", "--join"))
    assert "--explore" not in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["run", "--evaluation", "--", "python", "x.py"],
            "--evaluation is for models: a script evaluates in its own way",
        ),
        (["run", "--explore", "x=1", "--", "python", "x.py"], "--explore is for models: a script has no build()"),
        (
            ["run", "--nproc-per-node", "2", "--", "python", "x.py"],
            "torchrun --nproc-per-node 4 train.py; leave it out",
        ),
        (["run", "--effective-batch", "8", "--", "python", "x.py"], "expected 'free' for a script"),
        (["-m", "nowhere:build", "--network"], "--network is for scripts: nothing keeps a build() from files"),
        (["-m", "nowhere:build", "--writable", "."], "--writable is for scripts"),
    ],
)
def test_an_option_of_the_other_workload_is_refused_with_the_reason(arguments: list[str], told: str) -> None:
    """By the model of the options, though no help offers it."""
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, told in " ".join(result.output.split())) == (2, True), result.output


def test_a_workloads_own_effective_batch_has_the_same_range() -> None:
    """It comes from the user's build(), not from an option, and its divisors would take as long to find."""
    with pytest.raises(ConfigError, match="expected 1 to 2147483647"):
        check_constraints({}, (), (2**31 - 1) ** 2, {})


def test_a_name_that_is_no_option_is_cut_to_a_sentence() -> None:
    """Whatever is typed is shown, but not thousands of characters of it."""
    with pytest.raises(UsageError) as caught:
        options.Options.parse({"sampler": "x" * 5000}, target="a:b")
    assert len(str(caught.value)) < 200
