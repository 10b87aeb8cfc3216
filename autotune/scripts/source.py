"""A file of Python source, and edits of it that leave everything else as it is: comments, line endings, encoding."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from autotune.results.sites import Site


class CannotEditError(Exception):
    """A setting has no place of its own in the script.

    Args:
        why: As it follows the setting's name.
        of: The setting, where it is known.
    """

    def __init__(self, why: str, of: str | None = None) -> None:
        super().__init__(why if of is None else f"{of} {why}")
        self.why = why
        self.of = of


Around = TypeVar("Around", bound=ast.expr | ast.stmt)


@dataclass(frozen=True, order=True)
class Edit:
    """One replacement.

    Attributes:
        start: Of the characters that are replaced.
        end: Of them; the start, where text is inserted.
        text: In their place.
    """

    start: int
    end: int
    text: str


class Token(NamedTuple):
    """A word of the source: neither a comment nor a line ending."""

    text: str
    start: int
    end: int


class Source:
    """A file's text, its tree, and where in the text each node stands.

    Args:
        content: The file's bytes.

    Raises:
        CannotEditError: This Python cannot read it.
    """

    def __init__(self, content: bytes) -> None:
        try:
            self._encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
            self.text = content.decode(self._encoding)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.tree = ast.parse(self.text)
        except (SyntaxError, ValueError, LookupError, RecursionError) as error:
            raise CannotEditError(f"the script cannot be read as Python ({error})") from None
        if self.text.encode(self._encoding) != content:
            raise CannotEditError(f"the script does not come back from {self._encoding} as it was")
        # Python's own lines: a form feed, or a separator of Unicode's, begins none.
        self._starts = [0, *(found.end() for found in re.finditer(r"\r\n|\r|\n", self.text))]

    def offset(self, line: int, column: int) -> int:
        """Characters before a place that the tree tells as a line and a column in bytes of UTF-8."""
        start = self._starts[line - 1]
        return start + len(self.text[start : start + column].encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        """Where a node begins and ends."""
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno or node.lineno, node.end_col_offset or 0),
        )

    def line_of(self, offset: int) -> tuple[int, int]:
        """The line that a character stands in: where it begins, and where it ends, its ending included."""
        start = max(one for one in self._starts if one <= offset)
        end = min((one for one in self._starts if one > start), default=len(self.text))
        return start, end

    def indentation(self, offset: int) -> str | None:
        """What stands before a place in its line, if that is nothing but blanks."""
        start, _ = self.line_of(offset)
        before = self.text[start:offset]
        return before if not before.strip(" \t\f") else None

    def ending(self, offset: int) -> str:
        """How the line of a character ends; as the first one does, where it is the last and has no ending."""
        found = re.search(r"\r\n|\r|\n", self.text[slice(*self.line_of(offset))]) or re.search(r"\r\n|\r|\n", self.text)
        return found[0] if found is not None else "\n"

    def tokens(self, node: ast.expr) -> list[Token]:
        """The words of an expression.

        Raises:
            CannotEditError: They cannot be told.
        """
        start, end = self.span(node)
        first = self._starts.index(self.line_of(start)[0])

        def place(row: int, column: int) -> int:
            return start + column - 1 if row == 1 else self._starts[first + row - 1] + column

        # In parentheses, so that line endings within mean nothing.
        readline = io.StringIO(f"({self.text[start:end]})", newline="").readline
        left_out = {tokenize.NL, tokenize.COMMENT, tokenize.NEWLINE, tokenize.ENDMARKER}
        try:
            found = [token for token in tokenize.generate_tokens(readline) if token.type not in left_out]
        except (tokenize.TokenError, SyntaxError) as error:
            raise CannotEditError(f"stands where the words cannot be told apart ({error})") from None
        return [Token(token.string, place(*token.start), place(*token.end)) for token in found[1:-1]]

    def calls(self, *names: str) -> list[ast.Call]:
        """The calls of functions by their last name; without names, all."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        return [call for call in found if not names or last_name(call.func) in names]

    def call_at(self, site: Site) -> ast.Call:
        """The call that the recorder has seen.

        Raises:
            CannotEditError: It is not there, or not alone in its line where nothing but that is known.
        """
        if site.end is not None:
            found = [call for call in self.calls() if (call.end_lineno, call.end_col_offset) == tuple(site.end)]
        else:
            wanted = [site.kind, "__init__"] if site.kind is not None else []
            found = [call for call in self.calls(*wanted) if call.lineno == site.line]
        if len(found) != 1:
            raise CannotEditError(f"is given in line {site.line}, which cannot be told apart")
        return found[0]

    def around(self, node: ast.AST, *kinds: type[Around]) -> list[Around]:
        """What holds a node, of some kinds, the innermost first."""
        found = [one for one in ast.walk(self.tree) if isinstance(one, kinds) and one is not node]
        held = [one for one in found if any(inner is node for inner in ast.walk(one))]
        return sorted(held, key=lambda one: self.span(one)[1] - self.span(one)[0])

    def statement_of(self, node: ast.expr) -> ast.stmt:
        """The innermost statement that holds an expression."""
        return self.around(node, ast.stmt)[0]

    def function_of(self, node: ast.expr) -> ast.AST:
        """The innermost function that holds an expression; else the module."""
        functions = self.around(node, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        return functions[0] if functions else self.tree

    def is_repeated(self, node: ast.expr) -> bool:
        """Whether an expression stands in a loop; what a ``for`` goes through is computed once."""
        loops: list[ast.stmt] = self.around(node, ast.For, ast.AsyncFor, ast.While)
        once = [loop.iter for loop in loops if isinstance(loop, (ast.For, ast.AsyncFor))]
        return len(loops) > sum(any(inner is node for inner in ast.walk(one)) for one in once)

    def names(self, name: str) -> Iterator[ast.AST]:
        """All nodes that bind or read a name, whatever its scope."""
        for node in ast.walk(self.tree):
            own = {
                ast.Name: "id", ast.arg: "arg", ast.FunctionDef: "name", ast.AsyncFunctionDef: "name",
                ast.ClassDef: "name", ast.ExceptHandler: "name", ast.MatchAs: "name", ast.MatchStar: "name",
                ast.MatchMapping: "rest",
            }.get(type(node))  # fmt: skip
            named: list[str | None] = [getattr(node, own)] if own is not None else []
            if isinstance(node, ast.alias):
                named = [node.asname or node.name.partition(".")[0]]
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                named = [*node.names]
            if name in named:
                yield node

    def reads(self, node: ast.Name | ast.Attribute) -> list[ast.expr]:
        """All places that read a variable, or an attribute, of a node's name, whatever its scope or its object."""
        alike = [one for one in ast.walk(self.tree) if isinstance(one, (ast.Name, ast.Attribute))]
        same = [one for one in alike if type(one) is type(node) and last_name(one) == last_name(node)]
        return [one for one in same if isinstance(one.ctx, ast.Load)]

    def given_as(self, argument: str) -> list[ast.expr]:
        """What all calls give as a keyword argument, and all dictionaries under a key of that name."""
        found = [one.value for one in ast.walk(self.tree) if isinstance(one, ast.keyword) and one.arg == argument]
        for one in ast.walk(self.tree):
            if isinstance(one, ast.Dict):
                items = zip(one.keys, one.values, strict=True)
                found += [value for key, value in items if isinstance(key, ast.Constant) and key.value == argument]
        return found

    def meanings(self, node: ast.expr) -> set[str]:
        """What a name or an attribute may stand for by the file's imports, such as ``torch.backends.cudnn.benchmark``.

        Empty where no import of another package binds what it begins with.
        """
        if isinstance(node, ast.Attribute):
            return {f"{meaning}.{node.attr}" for meaning in self.meanings(node.value)}
        return self._imported.get(node.id, set()) if isinstance(node, ast.Name) else set()

    @functools.cached_property
    def _imported(self) -> Mapping[str, set[str]]:
        """What each name stands for that an import of another package binds, wherever in the file."""
        found: dict[str, set[str]] = {}
        for one in ast.walk(self.tree):
            if isinstance(one, ast.Import):
                for alias in one.names:
                    first = alias.name.partition(".")[0]
                    found.setdefault(alias.asname or first, set()).add(alias.name if alias.asname else first)
            elif isinstance(one, ast.ImportFrom) and not one.level:
                for alias in one.names:
                    found.setdefault(alias.asname or alias.name, set()).add(f"{one.module}.{alias.name}")
        return found

    def edited(self, edits: Iterable[Edit]) -> bytes:
        """The file with edits.

        Raises:
            CannotEditError: Two of them meet, or what they lead to is no Python.
        """
        text, before = self.text, len(self.text) + 1
        for edit in sorted(set(edits), reverse=True):
            if edit.end > before or edit.start == before:
                raise CannotEditError("stands where another one is changed")
            text, before = text[: edit.start] + edit.text + text[edit.end :], edit.start
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(text, "script", "exec", dont_inherit=True)
            return text.encode(self._encoding)
        except (SyntaxError, ValueError) as error:
            raise CannotEditError(f"cannot be written in the script ({error})") from None


def last_name(node: ast.expr) -> str | None:
    """What a name or an attribute ends with."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


class Code(str):
    """An expression, which stands in the source as it is."""

    __slots__ = ()


def literal(value: object) -> str:
    """A value as people write it."""
    if isinstance(value, Code):
        return str(value)
    return f'"{value}"' if isinstance(value, str) else repr(value)
