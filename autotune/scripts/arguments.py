"""Arguments of a call, changed in the source where their values stand: in the call, in a variable, in an option."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.scripts.callers import Caller, caller_of
from autotune.scripts.flags import destination, typed
from autotune.scripts.source import CannotEditError, Code, Edit, Source, last_name, literal

ANY = object()
"""A value that nobody has seen."""
_COMPUTED = {"os", "torch", "multiprocessing", "psutil", "len", "min", "max", "int", "round", "bool"}
"""An expression that reads nothing but these follows the machine, not what somebody has asked for."""
_NEEDS_WORKERS = {
    f"{prefix}{name}": f"{prefix}num_workers"
    for prefix in ("", "dataloader_")
    for name in ("prefetch_factor", "persistent_workers")
}
"""Arguments that are refused without workers: another run may be told to have none."""
_ONLY_TOLD = {"print", "debug", "info", "warning"}
"""Functions that tell what they are given, and do nothing else with it."""
_DEPTH = 4
"""Variables and options that are followed from one to the next. Chosen."""


@dataclass
class FileEdits:
    """What is to be changed in one file.

    Attributes:
        source: The file.
        argv: The words that the script was started with.
        edits: Of the file.
        hints: What to type instead, where the command line decides.
    """

    source: Source
    argv: Sequence[str]
    edits: set[Edit] = field(default_factory=set)
    hints: list[str] = field(default_factory=list)

    def set_arguments(
        self,
        call: ast.Call,
        values: Mapping[str, object],
        *,
        seen: Mapping[str, object] | None = None,
        parameters: Sequence[str] = (),
        absent: Callable[[str, object], bool] = lambda _name, _value: False,
    ) -> None:
        """Gives arguments of a call other values.

        Args:
            call: The call.
            values: By the arguments' names.
            seen: What the arguments were when the script ran: what the source says must be that.
            parameters: The names of the arguments by place.
            absent: Whether an argument that is not given has this value already.

        Raises:
            CannotEditError: The source does not say it in a way that can be changed.
        """
        missing: dict[str, object] = {}
        spread = [keyword for keyword in call.keywords if keyword.arg is None]
        starred = any(isinstance(one, ast.Starred) for one in call.args)
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
        if not starred:
            given |= dict(zip(parameters, call.args, strict=False))
        for name, value in values.items():
            if name in given:
                try:
                    wanted = self._guarded(name, value, given)
                    self.set_value(given[name], wanted, (seen or {}).get(name, ANY), name)
                except CannotEditError as error:
                    raise CannotEditError(error.why, name) from None
            elif starred and name in parameters:
                raise CannotEditError("may be given by place, among other arguments", name)
            elif not absent(name, value) or (spread and not _was_absent(name, seen or {}, absent)):
                missing[name] = self._guarded(name, value, given)
        if len(spread) > 1:
            raise CannotEditError("may be given in more than one dictionary")
        if spread and missing:
            self._set_in_dictionary(spread[0].value, missing, seen or {}, absent)
        elif missing:
            self._add(call, [f"{name}={literal(value)}" for name, value in missing.items()])

    def set_value(
        self, node: ast.expr, value: object, seen: object = ANY, name: str | None = None, depth: int = 0
    ) -> None:
        """Makes an expression have another value, there or where it gets its own.

        Args:
            node: The expression.
            value: That it is to have.
            seen: That it had when the script ran.
            name: Of the argument that it gives.
            depth: How many variables and options were followed to it.

        Raises:
            CannotEditError: The source does not say it in a way that can be changed.
        """
        if isinstance(node, ast.Constant):
            _require_seen(node, seen)
            self._replace(node, value)
        elif depth < _DEPTH and isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            self._set_option(node, value, seen, name, depth)
        elif depth < _DEPTH and isinstance(node, ast.Name):
            self._set_variable(node, value, seen, name, depth)
        elif depth < _DEPTH and (inner := _converted(node)) is not None:
            self.set_value(inner, value, seen, name, depth + 1)
        elif _is_computed(node):
            self._replace(node, value)
        else:
            raise CannotEditError(f"is computed by the script ({ast.unparse(node)})")

    def _replace(self, node: ast.expr, value: object) -> None:
        if not (isinstance(node, ast.Constant) and (node.value, type(node.value)) == (value, type(value))):
            self.edits.add(Edit(*self.source.span(node), literal(value)))

    def _set_variable(self, node: ast.Name, value: object, seen: object, name: str | None, depth: int) -> None:
        """Changes what a variable is bound to; where others read it too, what stands in its place here."""
        bound = self._bound(node)
        if not self._decides_more(node, value, seen, name):
            self.set_value(bound, value, seen, name, depth + 1)
        elif isinstance(bound, ast.Constant) or _is_computed(bound):
            _require_seen(bound, seen)
            self._replace(node, value)
        else:
            raise CannotEditError(f"is given by {node.id}, which the script reads for other things as well")

    def _decides_more(self, node: ast.Name | ast.Attribute, value: object, seen: object, name: str | None) -> bool:
        """Whether a change of a variable or an option is one of other things than this argument, of any call."""
        same = self.source.given_as(name) if name is not None else []
        settled = {id(one) for one in (node, *same, *map(_converted, same))}
        reads = [one for one in self.source.reads(node) if id(one) not in settled]
        return not all(self._finds_no_change(one, value, seen) for one in reads)

    def _finds_no_change(self, read: ast.expr, value: object, seen: object) -> bool:
        """Whether it comes to the same what is read there, or is told alone, or leads to nothing but itself."""
        statement, calls = self.source.statement_of(read), self.source.around(read, ast.Call)
        is_told = isinstance(statement, ast.Expr) and [statement.value] == calls
        if is_told and last_name(calls[0].func) in _ONLY_TOLD:
            return True
        targets = statement.targets if isinstance(statement, ast.Assign) and isinstance(read, ast.Attribute) else []
        if any(isinstance(one, ast.Attribute) and one.attr == last_name(read) for one in targets):
            return True
        tests: list[ast.expr] = [one.test for one in self.source.around(read, ast.IfExp)]
        tests += [one.test for one in self.source.around(read, ast.If)]
        is_test = any(one is read for one in tests)
        compared = any(ast.unparse(one) == f"{ast.unparse(read)} > 0" for one in self.source.around(read, ast.Compare))
        return (is_test or compared) and seen is not ANY and bool(seen) == bool(value)

    def _guarded(self, name: str, value: object, given: Mapping[Any, ast.expr], held: str | None = None) -> object:
        """A value that needs workers, so written that it is none where a variable or an option says there are none.

        Args:
            name: Of the argument.
            value: That it is to have.
            given: What else is given.
            held: The dictionary in which that is at hand, where it stands elsewhere.
        """
        former, workers = given.get(name), given.get(_NEEDS_WORKERS.get(name))
        was_off = former is None or (isinstance(former, ast.Constant) and former.value in {None, False})
        if value in {None, False} or not was_off or not isinstance(workers, (ast.Name, ast.Attribute)):
            return value
        if self.source.span(workers) in {(edit.start, edit.end) for edit in self.edits}:
            return value  # a number stands there now
        said = ast.unparse(workers) if held is None else f'{held}["{_NEEDS_WORKERS[name]}"]'
        decides = f"{said} > 0"
        return Code(decides if value is True else f"{literal(value)} if {decides} else None")

    def _bound(self, name: ast.Name) -> ast.expr:
        """What a variable is bound to that is bound once, where it can be seen."""
        places = [one for one in self.source.names(name.id) if not (isinstance(one, ast.Name) and _reads(one))]
        if len(places) == 1 and isinstance(places[0], ast.Name):
            statement = self.source.statement_of(places[0])
            home = self.source.function_of(places[0])
            visible = home in {self.source.tree, self.source.function_of(name)}
            plain = isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None
            whole = isinstance(statement, ast.AnnAssign) or (
                isinstance(statement, ast.Assign) and statement.targets == [places[0]]
            )
            if visible and plain and whole:
                return statement.value  # type: ignore[attr-defined,no-any-return]
        raise CannotEditError(f"is given by {name.id}, which is not bound once, and to a plain value")

    def _set_option(self, node: ast.Attribute, value: object, seen: object, argument: str | None, depth: int) -> None:
        """Changes the default of an argparse option, or says what to pass where the command line decides."""
        name, told = node.attr, ast.unparse(node)
        options = [call for call in self.source.calls("add_argument") if destination(call) == name]
        if len(options) != 1 or self.source.calls("set_defaults"):
            raise CannotEditError(f"is given by {told}, which is no option of one add_argument in this file")
        if self._is_overridden(name):
            raise CannotEditError(f"is given by {told}, which the script sets itself")
        if self._decides_more(node, value, seen, argument):
            raise CannotEditError(f"is given by {told}, which the script reads for other things as well")
        (option,) = options
        given = {keyword.arg: keyword.value for keyword in option.keywords}
        flags = [one.value for one in option.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        named = [flag for flag in flags if flag.startswith("-")]
        action = given.get("action")
        kind = action.value if isinstance(action, ast.Constant) else last_name(action) if action is not None else None
        word = typed(named, self.argv)
        if not named or kind not in {None, "store", "store_true", "store_false", "BooleanOptionalAction"}:
            raise CannotEditError(f"is given by {told}, which is no option that takes one value")
        longest = max(named, key=len)
        if kind in {"store_true", "store_false"}:
            self._hint(f"leave out {word}" if word else f"pass {longest}")
        elif kind == "BooleanOptionalAction":
            if word:
                self._hint(f"pass {longest}" if value else f"pass --no-{longest.lstrip('-')}")
            else:
                self._set_default(option, given.get("default"), value, seen, depth)
        elif word:
            self._hint(f"pass {longest} {value}")
        else:
            self._set_default(option, given.get("default"), value, seen, depth)

    def _is_overridden(self, name: str) -> bool:
        """Whether the script sets an option's attribute, but for where something else is asked, and was not so."""
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store):
                tests = [one.test for one in self.source.around(node, ast.If)]
                asked = {one.attr for test in tests for one in ast.walk(test) if isinstance(one, ast.Attribute)}
                if not tests or name in asked:
                    return True
        return False

    def _set_default(self, option: ast.Call, default: ast.expr | None, value: object, seen: object, depth: int) -> None:
        if default is not None:
            self.set_value(default, value, seen, "default", depth + 1)
        elif seen in {ANY, None}:
            self._add(option, [f"default={literal(value)}"])
        else:
            raise CannotEditError(f"was {seen!r}, and the option has no default")

    def _hint(self, hint: str) -> None:
        if hint not in self.hints:
            self.hints.append(hint)

    def _set_in_dictionary(
        self,
        node: ast.expr,
        values: Mapping[str, object],
        seen: Mapping[str, object],
        absent: Callable[[str, object], bool],
    ) -> None:
        """Changes what ``**node`` gives: in the dictionary itself where nothing else reads it, else over it."""
        own = self._own_dictionary(node)
        if own is None:
            if (caller := caller_of(self.source, node)) is not None:
                values = self._set_at_caller(caller, ast.unparse(node), values, seen, absent)
            if not values:
                return
            if not isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
                raise CannotEditError(f"may be given by **{ast.unparse(node)}")
            start, end = self.source.span(node)
            texts = "".join(f', "{name}": {literal(value)}' for name, value in values.items())
            self.edits |= {Edit(start, start, "{**"), Edit(end, end, f"{texts}}}")}
        elif isinstance(own, ast.Call):
            self.set_arguments(own, values, seen=seen, absent=absent)
        else:
            keys = [key.value for key in own.keys if isinstance(key, ast.Constant)]
            given = dict(zip(keys, own.values, strict=True))
            missing = []
            for name, value in values.items():
                if name in given:
                    self.set_value(given[name], self._guarded(name, value, given), seen.get(name, ANY), name)
                elif not absent(name, value):
                    missing.append(f'"{name}": {literal(self._guarded(name, value, given))}')
            if missing:
                self._add(own, missing)

    def _set_at_caller(
        self,
        caller: Caller,
        name: str,
        values: Mapping[str, object],
        seen: Mapping[str, object],
        absent: Callable[[str, object], bool],
    ) -> Mapping[str, object]:
        """Changes what a function's ``**name`` is given where it is called: what decides there goes on deciding.

        Returns:
            What is not given there, and may be said over it.
        """
        beyond: dict[str, object] = {}
        there: dict[str, object] = {}
        for argument, value in values.items():
            is_given = argument in caller.given
            if is_given or (caller.may_spread and argument not in caller.parameters):
                there[argument] = value
            elif not (absent(argument, value) and _was_absent(argument, seen, absent)):
                beyond[argument] = self._guarded(argument, value, caller.given, name)
        if caller.is_shared:
            decided = [one for one in there if not _is_fixed(caller.given.get(one))]
            if decided:
                raise CannotEditError(f"is given by **{name}, which goes to other calls as well", decided[0])
            return {**there, **beyond}
        if there:
            self.set_arguments(caller.call, there, seen=seen, absent=absent)
        return beyond

    def _own_dictionary(self, node: ast.expr) -> ast.Dict | ast.Call | None:
        """The literal, or the call of dict, that this is and nobody else reads; None where there is none."""
        found = node
        if isinstance(node, ast.Name):
            reads = [one for one in self.source.names(node.id) if isinstance(one, ast.Name) and _reads(one)]
            if len(reads) != 1:
                return None
            try:
                found = self._bound(node)
            except CannotEditError:
                return None
        if isinstance(found, ast.Dict) and all(isinstance(key, ast.Constant) for key in found.keys):
            return found
        named = isinstance(found, ast.Call) and isinstance(found.func, ast.Name) and found.func.id == "dict"
        if isinstance(found, ast.Call) and named and not found.args and all(one.arg for one in found.keywords):
            return found
        return None

    def _add(self, node: ast.Call | ast.Dict, texts: Sequence[str]) -> None:
        """Adds to what stands between the brackets that end a node, in the way in which the last one stands there."""
        source = self.source
        if isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.args[0], ast.GeneratorExp):
            raise CannotEditError("cannot be added to a call with nothing but a generator")
        tokens = source.tokens(node)
        comma = tokens[-2].text == ","
        last, bracket = tokens[-3] if comma else tokens[-2], tokens[-1]
        begins = _start_of_last(source, node)
        indentation, newline = source.indentation(begins), source.ending(last.start)
        _, line_end = source.line_of(last.end - 1)
        if begins < 0:
            self.edits.add(Edit(bracket.start, bracket.start, ", ".join(texts)))
        elif indentation is None:
            self.edits.add(Edit(last.end, last.end, "".join(f", {text}" for text in texts)))
        elif bracket.start < line_end or (comma and tokens[-2].start >= line_end):
            self.edits.add(Edit(last.end, last.end, "".join(f",{newline}{indentation}{text}" for text in texts)))
        else:  # each stands in a line of its own, and so do these
            lines = f",{newline}".join(f"{indentation}{text}" for text in texts)
            self.edits.add(Edit(line_end, line_end, f"{lines}{',' if comma else ''}{newline}"))
            if not comma:
                self.edits.add(Edit(last.end, last.end, ","))


def _start_of_last(source: Source, node: ast.Call | ast.Dict) -> int:
    """Where the last argument or item begins; -1 where there is none."""
    firsts: list[ast.expr | ast.keyword]
    if isinstance(node, ast.Dict):
        firsts = [key if key is not None else value for key, value in zip(node.keys, node.values, strict=True)]
    else:
        firsts = [*node.args, *node.keywords]
    return max((source.span(one)[0] for one in firsts), default=-1)


def _require_seen(node: ast.expr, seen: object) -> None:
    """That a value in the source is the one that the argument had when the script ran."""
    if isinstance(node, ast.Constant) and seen is not ANY and (node.value, type(node.value)) != (seen, type(seen)):
        raise CannotEditError(f"was {seen!r}, and the script says {node.value!r}")


def _was_absent(name: str, seen: Mapping[str, object], absent: Callable[[str, object], bool]) -> bool:
    """Whether an argument had, when the script ran, the value that it has where it is not given."""
    return name in seen and (seen[name] is ANY or absent(name, seen[name]))


def _reads(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def _converted(node: ast.expr) -> ast.expr | None:
    """What stands in ``int(…)``, if it is given by the script."""
    if isinstance(node, ast.Call) and last_name(node.func) in {"int", "bool"} and len(node.args) == 1:
        return node.args[0] if isinstance(node.args[0], (ast.Name, ast.Attribute)) and not node.keywords else None
    return None


def _is_fixed(node: ast.expr | None) -> bool:
    """Whether nothing that a person chooses decides an expression."""
    return isinstance(node, ast.Constant) or (node is not None and _is_computed(node))


def _is_computed(node: ast.expr) -> bool:
    """Whether an expression reads nothing of the script's."""
    kinds = (ast.Call, ast.Attribute, ast.BinOp, ast.BoolOp, ast.IfExp, ast.Compare, ast.UnaryOp)
    return isinstance(node, kinds) and all(one.id in _COMPUTED for one in ast.walk(node) if isinstance(one, ast.Name))
