"""Statements that are added to a script, where there is no doubt about their place."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from autotune.scripts.arguments import FileEdits
from autotune.scripts.source import CannotEditError, Edit, Source, literal

_OTHER_SPELLINGS = {
    "set_float32_matmul_precision": (
        "backends.cuda.matmul.allow_tf32", "backends.cuda.matmul.fp32_precision", "backends.fp32_precision",
        "backends.cudnn.allow_tf32",
    ),
    "backends.cudnn.benchmark": ("backends.cudnn.flags", "backends.cudnn.set_flags"),
}  # fmt: skip
"""What sets the same in torch."""
_CONDITIONAL = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match, ast.With, ast.AsyncWith)


def apply_line(source: Source, path: str) -> Edit:
    """The one line that applies a result, before all else but the docstring and imports of the future.

    Args:
        source: The script.
        path: The result file, from where the script runs.

    Raises:
        CannotEditError: The first statement has no line of its own.
    """
    for index, statement in enumerate(source.tree.body):
        is_docstring = not index and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if is_docstring or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            continue
        first = min([statement, *getattr(statement, "decorator_list", [])], key=lambda node: node.lineno)
        start, _ = source.line_of(source.offset(first.lineno, 0))
        if source.indentation(source.span(statement)[0]) is None:
            break
        return Edit(start, start, f"import autotune; autotune.apply({literal(path)}){source.ending(start)}")
    raise CannotEditError("the script's first statement stands in the line of another one")


def applying(source: Source) -> list[ast.Call]:
    """The calls that apply a result, as the one line does."""
    return [call for call in source.calls() if "autotune.apply" in source.meanings(call.func)]


def after_imports(file: FileEdits, statements: Sequence[str]) -> None:
    """Adds statements below the imports among which torch itself is.

    Args:
        file: Of the script.
        statements: In which ``torch.`` stands for however the script calls it.

    Raises:
        CannotEditError: It is not imported there.
    """
    body = file.source.tree.body
    kinds = (ast.Import, ast.ImportFrom)
    first = next((index for index, one in enumerate(body) if isinstance(one, ast.Import) and torch_name([one])), None)
    if first is None:
        raise CannotEditError("needs a line of 'import torch' at the script's top")
    last = first
    while last + 1 < len(body) and isinstance(body[last + 1], kinds):
        last += 1
    name = torch_name(body[first : first + 1])
    below = [statement.replace("torch.", f"{name}.", 1) for statement in statements]
    _add_below(file, body[last], below, gap=True)


def torch_name(statements: Sequence[ast.stmt]) -> str | None:
    """What torch is called after some statements; None where they do not import it."""
    for statement in statements:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if alias.name == "torch" or (alias.name.startswith("torch.") and alias.asname is None):
                    return alias.asname or "torch"
    return None


def set_call(file: FileEdits, function: str, value: object) -> bool:
    """Changes what a function of torch's is called with; returns False where the script does not call it.

    Raises:
        CannotEditError: It is called more than once, or not in any case, or something else may be.
    """
    _require_no_other_spelling(file.source, function)
    for call in file.source.calls(function):
        if not file.source.meanings(call.func):
            raise CannotEditError(f"may be set by {ast.unparse(call.func)}(), which may be torch's or another one")
    found = [call for call in file.source.calls() if f"torch.{function}" in file.source.meanings(call.func)]
    if not found:
        return False
    if len(found) > 1 or len(found[0].args) != 1 or _is_conditional(file.source, found[0]):
        raise CannotEditError(f"is set by {function}() in more places than one, or not always")
    file.set_value(found[0].args[0], value)
    return True


def set_attribute(file: FileEdits, dotted: str, value: object) -> bool:
    """Changes what an attribute of torch's is set to; returns False where the script does not set it.

    Raises:
        CannotEditError: It is set more than once, not in any case, or not to a literal.
    """
    _require_no_other_spelling(file.source, dotted)
    found = _settings(file.source, dotted)
    if not found:
        return False
    statement = file.source.statement_of(found[0])
    is_plain = isinstance(statement, ast.Assign) and len(statement.targets) == 1 and statement.targets[0] is found[0]
    told = statement.value if is_plain and isinstance(statement, ast.Assign) else None
    if len(found) > 1 or not isinstance(told, ast.Constant) or _is_conditional(file.source, statement):
        raise CannotEditError(f"is set by {dotted} in more places than one, or not always")
    file.set_value(told, value)
    return True


def _settings(source: Source, dotted: str) -> list[ast.expr]:
    """Where an attribute of torch's is set, however the script calls what holds it."""
    stored = [one for one in ast.walk(source.tree) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)]
    return [
        one
        for one in stored
        if f"torch.{dotted}" in source.meanings(one)
        or (ast.unparse(one).endswith(f".{dotted}") and not source.meanings(one))
    ]


def _require_no_other_spelling(source: Source, dotted: str) -> None:
    """That a script does not say the same to torch in other words, which would come after.

    Raises:
        CannotEditError: It does.
    """
    calls = {meaning for call in source.calls() for meaning in source.meanings(call.func)}
    for other in _OTHER_SPELLINGS.get(dotted, ()):
        if f"torch.{other}" in calls or _settings(source, other):
            raise CannotEditError(f"is set by {other}")


def on_model(file: FileEdits, optimizer: ast.Call, calls: Sequence[str]) -> None:
    """Calls methods of the model below the statement that gives its parameters to the optimizer.

    Args:
        file: Of the file.
        optimizer: Where the optimizer is made.
        calls: What follows the model's name, such as ``.compile()``.

    Raises:
        CannotEditError: The optimizer does not get the parameters of a named model.
    """
    given = [*optimizer.args[:1], *(one.value for one in optimizer.keywords if one.arg == "params")]
    weights = given[0] if len(given) == 1 else None
    if not (isinstance(weights, ast.Call) and isinstance(weights.func, ast.Attribute)):
        raise CannotEditError("needs an optimizer that is given model.parameters()")
    model = weights.func.value
    is_named = all(isinstance(one, (ast.Name, ast.Attribute, ast.Load)) for one in ast.walk(model))
    if weights.func.attr != "parameters" or weights.args or not is_named:
        raise CannotEditError("needs an optimizer that is given model.parameters()")
    statement = file.source.statement_of(optimizer)
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):  # below a return, nothing would run
        raise CannotEditError("needs an optimizer that is given a name where it is made")
    _add_below(file, statement, [f"{ast.unparse(model)}{call}" for call in calls])


def autocast_call(file: FileEdits, call: ast.Call, device: str, dtype: str) -> None:
    """Puts the statement ``out = model(…)`` under autocast, and what the model returns back into fp32.

    Raises:
        CannotEditError: The model is called in another way, or torch is not imported.
    """
    source = file.source
    statement = source.statement_of(call)
    name = torch_name(source.tree.body)
    is_plain = (
        isinstance(statement, ast.Assign)
        and statement.value is call
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    )
    indentation = source.indentation(source.span(statement)[0])
    if name is None or not is_plain or indentation is None or not _ends_line(source, statement):
        raise CannotEditError("needs the model's call in a statement of its own, such as 'out = model(x)'")
    if _has_text_over_lines(statement):
        raise CannotEditError("needs a call of the model without text of several lines")
    out = ast.unparse(statement.targets[0])  # type: ignore[attr-defined]
    start, end = source.span(statement)
    begin, (_, after) = source.line_of(start)[0], source.line_of(end)
    newline = source.ending(end)
    unit = "\t" if indentation.endswith("\t") else "    "
    inner = "".join(unit + line for line in re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", source.text[begin:after]))
    if not inner.endswith(("\n", "\r")):
        inner += newline
    above = f'{indentation}with {name}.autocast("{device}", dtype={name}.{dtype}):{newline}'
    file.edits.add(Edit(begin, after, f"{above}{inner}{indentation}{out} = {out}.float(){newline}"))


def _add_below(file: FileEdits, statement: ast.stmt, lines: Sequence[str], *, gap: bool = False) -> None:
    """Adds lines below a statement, indented as it is.

    Args:
        file: Of the file.
        statement: That stands alone in its lines.
        lines: Of Python.
        gap: Whether a blank line is put between, where one follows too.
    """
    source = file.source
    start, end = source.span(statement)
    indentation = source.indentation(start)
    if indentation is None or not _ends_line(source, statement):
        raise CannotEditError("needs a place below a statement that has its lines for itself")
    _, after = source.line_of(end)
    newline = source.ending(end)
    blank = newline if gap and source.text[after : after + len(newline)] == newline else ""
    text = "".join(f"{indentation}{line}{newline}" for line in lines)
    if after == len(source.text) and not source.text.endswith(("\n", "\r")):
        text = newline + text.removesuffix(newline)
    file.edits.add(Edit(after, after, blank + text))


def _ends_line(source: Source, statement: ast.stmt) -> bool:
    """Whether nothing but a comment follows a statement in its last line."""
    _, end = source.span(statement)
    rest = source.text[end : source.line_of(end)[1]].strip()
    return not rest or rest.startswith("#")


def _is_conditional(source: Source, node: ast.AST) -> bool:
    """Whether it depends on something that a statement is executed; on how the file is run does not count."""
    around = source.around(node, *_CONDITIONAL)
    mains = [one for one in around if isinstance(one, ast.If) and "__name__" in ast.unparse(one.test)]
    return len(around) > len(mains)


def _has_text_over_lines(statement: ast.stmt) -> bool:
    """Whether indenting its lines would change a text in it."""
    texts = (ast.Constant, ast.JoinedStr)
    return any(isinstance(one, texts) and one.end_lineno != one.lineno for one in ast.walk(statement))
