"""Results of scripts whose settings are given, so that what they change in the script can be looked at."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.knobs import ModelFacts
from autotune.knobs.config import TrainConfig
from autotune.patching.patch import Patch
from autotune.results.files import write_document
from autotune.results.result import Result, ScriptRecord, Side, Site, SourceRecord
from autotune.scripts import Script, ScriptIsolation
from autotune.scripts.facts import baseline_of, loop_of, source_of
from autotune.scripts.seen import SeenScript
from tests.example_scripts import START_SECONDS
from tests.factories import make_measurement, make_result

LOADER_PARAMETERS = (
    "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory",
)  # fmt: skip


def result_of(
    script: ScriptRecord, baseline: TrainConfig, best: TrainConfig, model: ModelFacts | None = None
) -> Result:
    """A result that claims a config."""
    made = make_result()
    return made.model_copy(
        update={
            "workload": made.workload.model_copy(update={"script": script, "model": model}),
            "baseline": Side(config=baseline, measurement=make_measurement(1000.0)),
            "best": Side(config=best, measurement=make_measurement(1500.0)),
        }
    )


def written(content: bytes, best: dict[str, Any], *, argv: Sequence[str] = ("train.py",), **known: Any) -> Result:
    """A result of a ``train.py`` that is written here, as if a recorder had seen its DataLoader and SGD.

    Args:
        content: Of the file.
        best: The knobs that the result changes.
        argv: The words that it was started with.
        known: Other fields of `SourceRecord`; ``before``, knobs of the script as it is; ``loader`` and ``optimizer``,
            what it calls instead of DataLoader and SGD.
    """
    Path("train.py").write_bytes(content)
    before = known.pop("before", {})
    loader, optimizer = known.pop("loader", "DataLoader"), known.pop("optimizer", "SGD")
    source = SourceRecord(
        main="train.py", folder=".", argv=tuple(argv), files={"train.py": hashlib.sha256(content).hexdigest()},
        loaders=(_site(content, loader, LOADER_PARAMETERS),), optimizers=(_site(content, optimizer),),
        has_autotune=True,
    )  # fmt: skip
    source = source.model_copy(update=known)
    script = ScriptRecord(
        command=("python", "train.py"),
        loop={"loaders": [], "models": ["__main__.Net abc"], "device": "cpu", "accumulation": 1, "optimizers": 1},
        source=source,
    )
    baseline = TrainConfig(batch_size=32, **before)
    model = ModelFacts(name="Net", tensors=2, weights=9, shapes="abc", optimizer=optimizer)
    return result_of(script, baseline, baseline.replace(**best), model)


def _site(content: bytes, name: str, parameters: Sequence[str] = ()) -> Site | None:
    """Where something is called by a name."""
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Call) and name in {getattr(node.func, "id", ""), getattr(node.func, "attr", "")}:
            end = (node.end_lineno or 0, node.end_col_offset or 0)
            return Site(file="train.py", line=node.lineno, end=end, kind=name, parameters=tuple(parameters))
    return None


def changes(patch: Patch) -> list[str]:
    """The lines of a patch that differ."""
    lines = patch.diff.decode().splitlines()
    return [line for line in lines if line[:1] in {"+", "-"} and line[:3] not in {"+++", "---"}]


def looked_at(command: Sequence[str]) -> SeenScript:
    """What a look at a script sees, in the working directory."""
    with ScriptIsolation(Script(tuple(command))) as isolation:
        isolation.start(START_SECONDS)
        return isolation.seen


def claimed(seen: SeenScript, command: Sequence[str], path: Path, **best: Any) -> Result:
    """A result file of a real script, as a look at it has seen it, that claims some knobs."""
    baseline = baseline_of(seen)
    script = ScriptRecord(command=tuple(command), loop=loop_of(seen), source=source_of(seen))
    result = result_of(script, baseline, baseline.replace(**best), ModelFacts(**seen.facts["model"]))
    write_document(result, path)
    return result
