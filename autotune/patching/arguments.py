"""Arguments of a call, written where their values stand: in the call, or as the default of an argparse option."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

from autotune.patching.framework_words import NEEDS_WORKERS
from autotune.patching.source import CannotEditError, Code, Source, last_name, literal, naming

ANY = object()
"""A value that needs no comparison with the source."""
_REFUSED_ALONE = {*NEEDS_WORKERS, "timeout"} - {"in_order"}
"""Arguments that torch refuses without workers."""


def set_arguments(
    source: Source,
    call: ast.Call,
    values: Mapping[str, object],
    *,
    seen: Mapping[str, object],
    parameters: Sequence[str] = (),
    absent: Callable[[str, object], bool] = lambda _name, _value: False,
) -> None:
    """Sets arguments of a call to new values.

    A literal in the source must equal what the script passed when it ran (`seen`). There, `ANY` stands for torch's
    default, given or not. `parameters` names the positional arguments. `absent` says whether an argument that is not
    given has this value already.

    Raises:
        CannotEditError: The call gives one neither by a literal nor by an option; or the value comes from
            elsewhere: `functools.partial`, a batch sampler or a subclass.
    """
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    starred = any(isinstance(argument, ast.Starred) for argument in call.args)
    spreads = starred or len(given) < len(call.keywords)
    if not starred:
        given |= dict(zip(parameters, call.args, strict=False))
    added = []
    for name, value in values.items():
        with naming([name]):
            if name in NEEDS_WORKERS.values() and not value:
                _require_unneeded(source, call, name, given, values)
            if name in given:
                code = _with_workers(name, value, given, spreads=spreads) if _is_off(given[name]) else value
                _set_value(source, call, given[name], code, seen.get(name, ANY), name)
            elif not spreads and seen.get(name, ANY) is not ANY and not absent(name, seen[name]):
                raise CannotEditError(f"was {seen[name]!r}, which the call does not say")
            elif absent(name, value) and (not spreads or (name in seen and seen[name] is ANY)):
                pass
            elif spreads:
                raise CannotEditError("may be given by * or ** in the call")
            else:
                added.append(f"{name}={literal(_with_workers(name, value, given, spreads=False))}")
    if added:
        source.add_arguments(call, added)


def _require_unneeded(
    source: Source, call: ast.Call, name: str, given: Mapping[str, ast.expr], values: Mapping[str, object]
) -> None:
    """Refuses 0 workers if this call, or another that reads the same option, has an argument that needs workers.

    Raises:
        CannotEditError: One has, or may have by ``**``.
    """
    words = [(argument, node) for argument, node in given.items() if argument not in values]
    words += [("**", word.value) for word in call.keywords if word.arg is None]
    if isinstance(option := given.get(name), ast.Attribute):
        for other in source.calls(last_name(call.func) or ""):
            own = [(word.arg or "**", word.value) for word in other.keywords]
            if other is not call and (name, ast.unparse(option)) in [(word, ast.unparse(node)) for word, node in own]:
                words += own
    if needing := [word for word, node in words if word in {*_REFUSED_ALONE, "**"} and not _is_off(node)]:
        raise CannotEditError(f"would be 0, and {needing[0]} {'may need' if needing[0] == '**' else 'needs'} workers")


def _with_workers(name: str, value: object, given: Mapping[str, ast.expr], *, spreads: bool) -> object:
    """A value that needs workers, written so that it is off if an option or a variable says that there are none.

    Raises:
        CannotEditError: The script computes their number.
    """
    workers = given.get(NEEDS_WORKERS.get(name, ""))
    if name not in NEEDS_WORKERS or not value or isinstance(workers, ast.Constant):
        return value
    if workers is None and not spreads:  # a literal is added with it
        return value
    if not isinstance(workers, (ast.Name, ast.Attribute)):
        raise CannotEditError("needs workers, and the script computes their number")
    decides = f"{ast.unparse(workers)} > 0"
    return Code(decides if value is True else f"{literal(value)} if {decides} else None")


def _is_off(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in {None, False}


def _set_value(source: Source, call: ast.Call, node: ast.expr, value: object, seen: object, name: str) -> None:
    """Changes a literal, or the default of the option that an expression reads."""
    if isinstance(node, ast.Constant):
        _replace(source, node, value, seen)
    elif isinstance(node, ast.Attribute):
        stays_on = seen is not ANY and bool(seen) == bool(value)
        try:
            _replace(source, _default_of(source, call, node, name, stays_on=stays_on), value, seen)
        except CannotEditError as error:
            raise CannotEditError(f"is given by {ast.unparse(node)}, which {error.why}") from None
    else:
        raise CannotEditError(f"is computed by the script ({ast.unparse(node)})")


def _replace(source: Source, node: ast.Constant, value: object, seen: object) -> None:
    if seen is not ANY and (node.value, type(node.value)) != (seen, type(seen)):
        raise CannotEditError(f"was {seen!r}, and the script says {node.value!r}")
    if (node.value, type(node.value)) != (value, type(value)):
        source.replace(node, literal(value))


def _default_of(source: Source, call: ast.Call, node: ast.Attribute, name: str, *, stays_on: bool) -> ast.Constant:
    """The literal default of an option that decides this argument, in calls of the same name, and nothing else.

    `call` gives the argument, by reading `node`. It stays on if the old and the new value are both zero, or both not.

    Raises:
        CannotEditError: There is none.
    """
    options = [call for call in source.calls("add_argument") if destination(call) == node.attr]
    if len(options) != 1 or source.calls("set_defaults"):
        raise CannotEditError("is no option of one add_argument in this file")
    option = {keyword.arg: keyword.value for keyword in options[0].keywords}
    flags = [flag for flag in _texts(options[0].args) if flag.startswith("-")]
    action = option.get("action", ast.Constant("store"))
    kind = action.value if isinstance(action, ast.Constant) else last_name(action)
    default = option.get("default")
    if not flags or kind not in {"store", "BooleanOptionalAction"} or not isinstance(default, ast.Constant):
        raise CannotEditError("is no option that takes one value and has a literal default")
    negated = [f"--no-{flag[2:]}" for flag in flags if flag.startswith("--") and kind != "store"]
    if (word := typed([*flags, *negated], source.argv)) is not None:
        raise CannotEditError(f"the command line decides ({word})")
    if not _is_parsed(source, node.value):
        raise CannotEditError("is not surely an option, or may be read elsewhere as well")
    alike = source.calls(last_name(call.func) or "")
    harmless = {id(part.value) for other in alike for part in other.keywords if part.arg == name} | {id(node)}
    for part in ast.walk(source.tree):
        if stays_on and isinstance(part, ast.Compare) and ast.unparse(part) == f"{ast.unparse(node)} > 0":
            harmless.add(id(part.left))
    uses = [part for part in ast.walk(source.tree) if isinstance(part, ast.Attribute) and part.attr == node.attr]
    if not all(id(use) in harmless for use in uses):
        raise CannotEditError("the script sets, or reads elsewhere as well")
    return default


def _is_parsed(source: Source, options: ast.expr) -> bool:
    """Whether this is a name that holds the words of the command line, and nothing but public attributes are read.

    Functions of the file may take it under the same name, and one that is called ``parse_args`` may return it.
    """
    parsers = [call for call in source.calls() if "argparse.ArgumentParser" in source.meanings(call.func)]
    taken = {keyword.arg for parser in parsers for keyword in parser.keywords}
    parsing = source.calls("parse_args", "parse_known_args", "parse_intermixed_args", "parse_known_intermixed_args")
    if len(parsers) != 1 or taken & {None, "fromfile_prefix_chars"} or any(it.args or it.keywords for it in parsing):
        return False
    if not isinstance(options, ast.Name):  # what reads an attribute of another object is not known
        return False
    parts, name = [*ast.walk(source.tree)], options.id
    functions = [part for part in parts if isinstance(part, ast.FunctionDef)]
    binders = [
        part for part in parts if isinstance(part, (ast.alias, ast.ExceptHandler, ast.FunctionDef, ast.ClassDef))
    ]
    if any(name in {part.name, getattr(part, "asname", None)} for part in binders):
        return False
    inside = [part for taker in functions if taker.name == "parse_args" for part in ast.walk(taker)]
    fine = {id(part.value) for part in inside if isinstance(part, ast.Return)}
    assigned = [part for part in parts if isinstance(part, ast.Assign) and part.value in parsing]
    bound = [part for part in assigned if [*map(ast.unparse, part.targets)] == [name]]
    if not bound or not {id(call) for call in parsing} <= {id(part.value) for part in bound} | fine:
        return False
    top_level = [taker for taker in functions if taker in source.tree.body]
    takers = {taker.name for taker in top_level if name in {arg.arg for arg in taker.args.args}}
    if sum(isinstance(part, ast.arg) and part.arg == name for part in parts) != len(takers):
        return False
    fine |= {id(part.targets[0]) for part in bound}
    fine |= {id(part.value) for part in parts if isinstance(part, ast.Attribute) and part.attr[0] != "_"}
    for call in source.calls(*takers, "print"):
        values = (*call.args, *(word.value for word in call.keywords))
        given = [value for value in values if ast.unparse(value) == name]
        if given and isinstance(call.func, ast.Name):
            fine |= {id(call.func), *map(id, given)}
    return all(id(part) in fine for part in parts if isinstance(part, ast.Name) and part.id in {name, *takers})


def _texts(arguments: Sequence[ast.expr]) -> list[str]:
    """The arguments that are literal strings."""
    return [part.value for part in arguments if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def typed(named: Sequence[str], argv: Sequence[str]) -> str | None:
    """The word of the command line that sets one of these options, which may be abbreviated."""
    for word in argv[1:]:
        before = word.partition("=")[0]
        for option in named:
            long = option.startswith("--") and len(before) > 2 and before.startswith("--")
            if word == option or (long and option.startswith(before)):
                return before
            if not option.startswith("--") and not word.startswith("--") and word.startswith(option):
                return option
    return None


def destination(option: ast.Call) -> str | None:
    """The attribute that holds the value of an option."""
    for keyword in option.keywords:
        if keyword.arg == "dest":
            return str(keyword.value.value) if isinstance(keyword.value, ast.Constant) else None
    flags = _texts(option.args)
    long = [flag for flag in flags if flag.startswith("--")]
    name = next(iter(long or flags), None)
    return name.lstrip("-").replace("-", "_") if name is not None else None
