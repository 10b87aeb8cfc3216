"""The options that tuning a `build()` and tuning a script share, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.commands import options
from autotune.commands.outputs import require_result_place
from autotune.errors import UsageError
from autotune.units import parse_duration

Objective = Annotated[
    str,
    typer.Option(help="What is maximised: samples_per_second, samples_per_joule of the device, or samples_per_dollar."),
]
AtLeast = Annotated[
    str,
    typer.Option(
        help="With samples_per_joule: nothing below this share of the fastest config's rate replaces what you have.",
        metavar="SHARE",
    ),
]
MachinesAtLeast = Annotated[
    str, typer.Option(help="The cheapest must reach this share of the fastest machine's rate.", metavar="SHARE")
]
DollarsPerHour = Annotated[
    str, typer.Option(help="What this machine costs an hour; comparisons show it too.", metavar="DOLLARS")
]
MachineName = Annotated[str, typer.Option(help="Name of this machine in comparisons; its hardware when left out.")]
Budget = Annotated[str, typer.Option(help="Wall-clock time for everything: 90s, 10m, 1h30m.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, rocm or mps; the first accelerator when left out.")]
Out = Annotated[Path | None, typer.Option(help="The result file; in results/<machine> when left out.")]
MemoryTarget = Annotated[str, typer.Option(help="The share of memory that may be used.")]
UtilizationTarget = Annotated[
    str, typer.Option(help="How busy the GPU and how near its ceiling training must be for the search to stop.")
]
Pin = Annotated[list[str] | None, typer.Option(help="Hold a knob; may be repeated.", metavar="KNOB=VALUE")]
Only = Annotated[str, typer.Option(help="Search only these knobs.", metavar="KNOB,KNOB")]
MaxWorkers = Annotated[str, typer.Option(help="Never use more DataLoader workers.", metavar="NUMBER")]
WarmStart = Annotated[
    list[Path] | None, typer.Option(help="Try another machine's result first; may be repeated.", metavar="FILE")
]
Sampler = Annotated[str, typer.Option(help="What proposes candidates: bayes, or Optuna's tpe, gp or random.")]
Seed = Annotated[str, typer.Option(help="Seeds the sampler and the order of bursts.", metavar="NUMBER")]
Storage = Annotated[str, typer.Option(help="Database URL for the trials; a file by the result when left out.")]
AllowNumerics = Annotated[
    bool, typer.Option("--allow-numerics", help="Also search products in FP8, and gradients exchanged in bf16.")
]
Writable = Annotated[
    list[Path] | None,
    typer.Option(help="A file or folder that bursts may change in earnest; may be repeated.", metavar="PATH"),
]
Network = Annotated[
    bool, typer.Option("--network", help="Let bursts connect anywhere after their first step, not only to their data.")
]
Join = Annotated[
    str,
    typer.Option(help="Share the study of this name in --storage with other machines of this kind.", metavar="NAME"),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue an interrupted run; only bursts that timed out are repeated.")
]


def options_of(
    *,
    target: str,
    budget: str,
    device: str,
    effective_batch: str,
    memory_target: str,
    utilization_target: str,
    pin: list[str] | None,
    only: str,
    max_workers: str,
    warm_start: list[Path] | None,
    sampler: str,
    seed: str,
    storage: str,
    explore: list[str] | None = None,
    objective: str = "samples_per_second",
    at_least: str = "",
    dollars_per_hour: str = "",
    machine_name: str = "",
    nproc_per_node: str = "1",
    join: str = "",
    resume: bool = False,
    out: Path | None = None,
    **others: Any,
) -> options.Options:
    """Parses the options that were typed; the others are parsed already.

    Raises:
        UsageError: One of them is invalid.
    """
    from autotune.measuring import objective_named

    if out is not None:
        require_result_place(out)
    if join and not storage:
        raise UsageError("--join: expected --storage with the URL of a database that all machines reach; pass both")
    if join and resume:
        raise UsageError("--join and --resume contradict each other; a study that is shared is continued as it is")
    price = options.parse_dollars(dollars_per_hour)
    goal = objective_named(objective, price)
    floor = options.parse_floor(at_least)
    if floor is not None and goal.follows_rate:
        raise UsageError(
            f"--at-least: expected an objective by which the fastest config need not be the best, got {goal.name}; "
            "pass --objective samples_per_joule, or leave it out"
        )
    if sampler == "gp" and find_spec("scipy") is None:
        raise UsageError("--sampler gp needs scipy, which is not installed; pip install scipy, or leave it out")
    return options.Options(
        target=target,
        objective=goal.name,
        at_least=floor,
        dollars_per_hour=price,
        machine_name=options.parse_name("--machine-name", machine_name),
        budget_seconds=parse_duration(budget),
        device=options.parse_device(device),
        effective_batch=options.parse_effective_batch(effective_batch),
        memory_target=options.parse_share("--memory-target", memory_target, options.LEAST_MEMORY),
        utilization_target=options.parse_share("--utilization-target", utilization_target),
        pinned=options.parse_pins(pin or ()),
        only=options.parse_only(only),
        max_workers=options.parse_whole("--max-workers", max_workers, 0, options.MOST_WORKERS) if max_workers else None,
        explored=options.parse_explored(explore or ()),
        warm_start=tuple(warm_start or ()),
        sampler=options.one_of("--sampler", sampler, options.SAMPLERS),
        seed=options.parse_whole("--seed", seed, 0, options.MOST_SEED),
        storage=storage or None,
        join=options.parse_name("--join", join),
        out=out,
        resume=resume,
        ranks=options.parse_ranks(nproc_per_node),
        **others,
    )


def script_options(command: Sequence[str], *, effective_batch: str, **typed: Any) -> options.Options:
    """The same for a script.

    Raises:
        UsageError: An option is invalid, or there is no such program.
    """
    from autotune.scripts.script import Script

    script = Script.of(command)
    if effective_batch not in {"", "free"}:
        raise UsageError(
            f"--effective-batch: expected 'free' for a script, which accumulates by itself, got {effective_batch!r}; "
            "leave it out, or pass 'free'"
        )
    return options_of(target=script.text, script=script.command, effective_batch=effective_batch, **typed)
