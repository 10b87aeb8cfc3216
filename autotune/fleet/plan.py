"""The fleet's file: which kinds of machine there are, how the engine finds them, and what an hour of each costs."""

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
RAY_ONLY, SLURM_ONLY = ("labels", "resources"), ("partition", "constraint", "sbatch")
"""Keys of a machine that only one engine understands."""
OWN_KEYS = {"CPU": "cpus", "GPU": "gpus"}
"""What Ray takes for resources as well, but refuses among the custom ones."""
MOST_BYTES = 2**20
"""A thousand machines of ten lines each have a tenth of that."""
_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MachineKind(BaseModel):
    """One kind of machine.

    Attributes:
        dollars_per_hour: Of one machine of this kind.
        cpus: To be reserved; of the whole node where the figures are to be worth something.
        gpus: To be reserved.
        labels: Ray: that a node must have, with their values.
        resources: Ray: custom resources that a node must have, with how much of each.
        partition: Slurm's.
        constraint: Slurm's: features that a node must have.
        sbatch: Slurm: further parameters of ``sbatch``, by their long names.
        options: Of ``autotune``, for this kind of machine alone.
    """

    model_config = _STRICT

    dollars_per_hour: Dollars | None = None
    cpus: int | None = Field(default=None, ge=1, le=65536)
    gpus: int | None = Field(default=None, ge=0, le=1024)
    labels: dict[str, str] = Field(default_factory=dict)
    resources: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    partition: str | None = None
    constraint: str | None = None
    sbatch: dict[str, str | int | float | bool] = Field(default_factory=dict)
    options: tuple[str, ...] = ()


class Plan(BaseModel):
    """What the file holds.

    Attributes:
        engine: Who runs the jobs; ``local``: processes of this machine, to try a file without a cluster.
        address: Of the Ray cluster, as `ray.init` takes it.
        folder: Slurm: where jobs and their output are kept; every node must see it.
        excludes: Ray: files and folders that are not sent to the nodes, as in a ``.gitignore``.
        wait: How long a job may stay in the queue, such as ``2h``; None: as long as it takes.
        machines: The kinds, by the names that results and comparisons call them.
    """

    model_config = _STRICT

    engine: EngineName
    address: str | None = None
    folder: str | None = None
    excludes: tuple[str, ...] = ()
    wait: str | None = None
    machines: dict[str, MachineKind] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_meant_for_its_engine(self) -> Plan:
        foreign = {"ray": SLURM_ONLY, "slurm": RAY_ONLY, "local": ()}[self.engine]
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
        """How long a job may stay in the queue."""
        return parse_duration(self.wait) if self.wait is not None else None


def read_plan(path: Path, *, engine: str = "", address: str = "") -> Plan:
    """What a fleet's file holds; an engine or an address that is given takes the place of the file's.

    Raises:
        UsageError: It cannot be read, or does not say what a fleet's file must.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} is no fleet file: it has more than 1 MiB")
        found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"expected a fleet file at {path}, but there is none; write {EXAMPLE} into one, a table for each machine"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: no TOML, or not UTF-8
        raise UsageError(f"{path} cannot be read as TOML: {error}") from None
    if engine:
        found["engine"] = engine
    if address:
        found["address"] = address
    try:
        return Plan.model_validate(found)
    except (ValidationError, UsageError) as error:
        raise UsageError(f"{path}: {_first(error)}") from None


def _first(error: ValidationError | UsageError) -> str:
    """The first thing that is wrong, in a sentence."""
    if isinstance(error, UsageError):
        return str(error)
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = MachineKind.model_fields if where.startswith("machines.") else Plan.model_fields
        return f"expected one of {', '.join(known)}, got {where}"
    if first["type"] == "missing":
        remedy = f"one of {', '.join(get_args(EngineName))}" if where == "engine" else "a table for each machine"
        return f"{where} is missing: expected {remedy}"
    return f"{where}: {first['msg']}" if where else first["msg"].removeprefix("Value error, ")
