"""The fleet file: which kinds of machine there are, how the engine finds them, and what an hour of each costs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from autotune.errors import UsageError
from autotune.hardware import slug
from autotune.stored import Dollars
from autotune.units import parse_duration

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EngineName = Literal["ray", "slurm", "local"]
EXAMPLE = 'engine = "ray" and [machines.a100] with gpus = 1'
EXAMPLES = {
    "engine": 'engine = "ray", "slurm" or "local"',
    "address": 'address = "auto"',
    "folder": 'folder = "/shared/jobs"',
    "excludes": 'excludes = ["data"]',
    "wait": 'wait = "2h"',
    "dollars_per_hour": "dollars_per_hour = 2.5",
    "cpus": "cpus = 8",
    "gpus": "gpus = 1",
    "labels": 'labels = { kind = "a100" }',
    "resources": "resources = { ssd = 1 }",
    "partition": 'partition = "gpu"',
    "constraint": 'constraint = "a100"',
    "sbatch": 'sbatch = { qos = "high" }',
    "options": 'options = ["--device=cpu"]',
}
"""How each key is written, for messages."""
RAY_ONLY, SLURM_ONLY = ("labels", "resources"), ("partition", "constraint", "sbatch")
"""Keys of a machine that only one engine understands."""
MEANINGLESS = {"ray": ("folder",), "slurm": ("address", "excludes"), "local": ("address", "excludes", "wait")}
"""Keys of the file that an engine does not use."""
OWN_KEYS = {"CPU": "cpus", "GPU": "gpus"}
"""Names that Ray refuses as custom resources, with the keys that set them."""
MOST_BYTES = 2**20
"""Largest fleet file; a thousand machines of ten lines each take a tenth of it."""
_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MachineKind(BaseModel):
    """One kind of machine."""

    model_config = _STRICT

    dollars_per_hour: Dollars | None = None
    # Reserve the whole node, or its other jobs disturb the measurements.
    cpus: int | None = Field(default=None, ge=1, le=65536)
    gpus: int | None = Field(default=None, ge=0, le=1024)  # Ray hides a node's GPUs from a job that reserves none
    # Ray alone: what a node must have.
    labels: dict[str, str] = Field(default_factory=dict)
    resources: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    # Slurm alone.
    partition: str | None = None
    constraint: str | None = None  # features that a node must have
    sbatch: dict[str, str | int | float | bool] = Field(default_factory=dict)  # further parameters, by long name

    options: tuple[str, ...] = ()  # of ``autotune``, for this kind of machine alone


class Plan(BaseModel):
    """The content of a fleet file.

    `wait` limits the time that a job stays in Slurm's queue, or waits for a Ray node that does not exist yet, such as
    ``2h``; None for no limit.
    """

    model_config = _STRICT

    engine: EngineName  # ``local`` runs the jobs on this machine, to try a file without a cluster
    address: str | None = None  # of the Ray cluster, as `ray.init` takes it
    folder: str | None = None  # Slurm: for jobs and their output; every node must see it
    excludes: tuple[str, ...] = ()  # Ray: files and folders that are not sent to the nodes, as in a ``.gitignore``
    wait: str | None = None
    machines: dict[str, MachineKind] = Field(min_length=1)  # by the name that results and comparisons use

    @model_validator(mode="after")
    def _is_meant_for_its_engine(self) -> Plan:
        foreign = {"ray": SLURM_ONLY, "slurm": RAY_ONLY, "local": ()}[self.engine]
        if unused := [key for key in MEANINGLESS[self.engine] if getattr(self, key)]:
            raise ValueError(f"{unused[0]} means nothing to the engine {self.engine}; leave it out")
        folders: dict[str, str] = {}
        for name, kind in self.machines.items():
            for key in foreign:
                if getattr(kind, key):
                    raise ValueError(f"machines.{name}.{key} means nothing to the engine {self.engine}; leave it out")
            if own := OWN_KEYS.keys() & kind.resources.keys():
                raise ValueError(
                    f"machines.{name}.resources: {min(own)} has a key of its own; use {OWN_KEYS[min(own)]}"
                )
            if not name.strip() or not name.isprintable() or len(name) > 60:
                raise ValueError(f"expected a printable name of 1 to 60 characters for a machine, got {name!r:.80}")
            if (other := folders.setdefault(slug(name), name)) != name:
                raise ValueError(f"the machines {other} and {name} would share the folder results/{slug(name)}")
        if self.wait is not None:
            parse_duration(self.wait)
        return self

    @property
    def wait_seconds(self) -> float | None:
        """`wait` in seconds."""
        return parse_duration(self.wait) if self.wait is not None else None


def read_plan(path: Path, *, engine: str = "", address: str = "") -> Plan:
    """Reads a fleet file; an engine or an address that is given here replaces the file's.

    Keys of the file that another engine, given here, does not use are ignored.

    Raises:
        UsageError: The file cannot be read, or is no valid fleet file.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} is no fleet file: it has more than 1 MiB")
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"expected a fleet file at {path}, but there is none; write {EXAMPLE} into one, a table for each machine"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: no TOML, or not UTF-8
        raise UsageError(f"{path} cannot be read as TOML: {error}; correct it, as in {EXAMPLE}") from None
    if engine and engine != content.get("engine"):
        content = {key: value for key, value in content.items() if key not in MEANINGLESS.get(engine, ())}
    if engine:
        content["engine"] = engine
    if address and content.get("engine") in ("slurm", "local"):  # a file may hold a list there
        raise UsageError(f"--address names a Ray cluster, but the engine is {content['engine']}; leave it out")
    if address:
        content["address"] = address
    try:
        return Plan.model_validate(content)
    except (ValidationError, UsageError) as error:
        raise UsageError(f"{path}: {_first(error)}") from None


def _first(error: ValidationError | UsageError) -> str:
    """The first error, as a sentence."""
    if isinstance(error, UsageError):
        return str(error)
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        fields = MachineKind.model_fields if where.startswith("machines.") else Plan.model_fields
        return f"expected one of {', '.join(fields)}, got {where}"
    if first["type"] == "missing":
        remedy = f"one of {', '.join(get_args(EngineName))}" if where == "engine" else "a table for each machine"
        return f"{where} is missing: expected {remedy}"
    if not where:
        return str(first["msg"].removeprefix("Value error, "))
    expected = first["msg"].replace("Input should be", "expected", 1)
    table, *rest = first["loc"]
    key = rest[1] if table == "machines" and len(rest) > 1 else table
    return f"{where}: {expected}, got {first['input']!r:.60}; write {EXAMPLES.get(str(key), EXAMPLE)}"
