"""`autotune schema`: the JSON Schema of the result file."""

from __future__ import annotations

from autotune.commands.common import reported, say


@reported
def schema() -> None:
    """Prints the JSON Schema of the result file."""
    import json

    from autotune.results.result import Result

    say(json.dumps(Result.model_json_schema(by_alias=True, mode="serialization"), indent=2))
