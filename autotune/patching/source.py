"""A file of Python source, and edits that keep the rest unchanged: comments, line endings, encoding."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import io
import json
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence

from autotune.recorder.repeating import repeated
from autotune.results.result import Site

_LINE_END = re.compile(rb"\r\n|\r|\n")
"""Where Python ends a line: a form feed, or a separator of Unicode, ends none."""


class CannotEditError(Exception):
    """A setting has no place of its own in the script.

    Args:
        why: The reason, as it follows the setting's name.
        setting: Its name, if it is known.
    """

    def __init__(self, why: str, setting: str | None = None) -> None:
        super().__init__(why if setting is None else f"{setting} {why}")
        self.why = why
        self.setting = setting


@contextlib.contextmanager
def naming(settings: Iterable[str]) -> Iterator[None]:
    """Adds the names of settings to an error that has none; its verb agrees with them."""
    try:
        yield
    except CannotEditError as error:
        if error.setting is not None:
            raise
        names = sorted(settings)
        why = re.sub("^is ", "are ", error.why) if len(names) > 1 else error.why
        raise CannotEditError(why, " and ".join(names)) from None


class Source:
    """A file's tree, and edits at the places of its nodes. Offsets count bytes of UTF-8, as the tree's columns do.

    Raises:
        CannotEditError: This version of Python cannot read it.
    """

    def __init__(self, content: bytes, argv: Sequence[str] = ()) -> None:
        try:
            self._encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
            text = content.decode(self._encoding)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.tree = ast.parse(text)
        except (SyntaxError, ValueError, LookupError, RecursionError) as error:
            raise CannotEditError(f"the script cannot be read as Python ({error})") from None
        if text.encode(self._encoding) != content:
            raise CannotEditError(f"the script does not come back from {self._encoding} as it was")
        self.argv = argv
        self._text = text.encode()
        self._starts = [0, *(match.end() for match in _LINE_END.finditer(self._text))]
        self._edits: dict[tuple[int, int], str] = {}

    @property
    def is_edited(self) -> bool:
        """Whether there is any edit."""
        return bool(self._edits)

    def calls(self, *names: str) -> list[ast.Call]:
        """The calls of functions with these last names; without names, all calls."""
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        return [call for call in calls if not names or last_name(call.func) in names]

    def call_at(self, site: Site) -> ast.Call:
        """The call that the recorder has seen.

        Raises:
            CannotEditError: It is missing, or only its line is known, which holds several such calls; or it is one of
                Python itself that calls the maker, such as ``list(map(DataLoader, data))``.
        """
        if site.end is not None:
            calls = [call for call in self.calls() if (call.end_lineno, call.end_col_offset) == tuple(site.end)]
        else:
            names = [site.kind, "__init__"] if site.kind is not None else []
            calls = [call for call in self.calls(*names) if call.lineno == site.line]
        if len(calls) != 1:
            raise CannotEditError(f"is given in line {site.line}, which holds {len(calls)} such calls, not one")
        if isinstance(caller := calls[0].func, ast.Name) and hasattr(builtins, caller.id):
            raise CannotEditError(f"is given in line {site.line} by {caller.id}(), which takes no such argument")
        return calls[0]

    def is_repeated(self, call: ast.Call) -> bool:
        """Whether a call stands in a loop, or in a function of the file that is called again and again."""
        return any(node is call for node in repeated(self.tree))

    def meanings(self, node: ast.expr) -> set[str]:
        """What a name or an attribute may stand for by the file's imports, such as ``lightning.Trainer``.

        Empty if no import of another package binds its first part.
        """
        if isinstance(node, ast.Attribute):
            return {f"{meaning}.{node.attr}" for meaning in self.meanings(node.value)}
        return self._imported.get(node.id, set()) if isinstance(node, ast.Name) else set()

    @functools.cached_property
    def _imported(self) -> Mapping[str, set[str]]:
        """What each name stands for that an import of another package binds, and no class or function of the file."""
        names: dict[str, set[str]] = {}
        own: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    names.setdefault(alias.asname or first, set()).add(alias.name if alias.asname else first)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    names.setdefault(alias.asname or alias.name, set()).add(f"{node.module}.{alias.name}")
            elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                own.add(node.name)
        return {name: meanings for name, meanings in names.items() if name not in own}

    def replace(self, node: ast.expr, text: str) -> None:
        """Replaces an expression by other code."""
        self._edit(*self._span(node), text)

    def add_arguments(self, call: ast.Call, arguments: Sequence[str]) -> None:
        """Adds arguments after the last one of a call: on lines of their own if the last one begins a line.

        Raises:
            CannotEditError: The only argument is a generator without brackets of its own.
        """
        close = self._span(call)[1] - 1
        spans = [*map(self._span, call.args), *map(self._span, call.keywords)]
        if not spans:
            begin = self._text.index(b"(", self._span(call.func)[1]) + 1
            self._edit(begin, begin, ", ".join(arguments))
            return
        start, end = max(spans)
        if end > close:
            raise CannotEditError("cannot be added to a call with nothing but a generator")
        # This may hold brackets around the last one, and a comma; a backslash joins lines.
        code = self._text[end:close].partition(b"#")[0].rstrip(b" \t\f\r\n\\")
        begin = line_end = end + len(code)
        comma = "," if code.endswith(b",") else ""
        separator = " "
        if (indentation := self._indentation(start)) is not None:
            separator = self._newline(begin) + indentation
            ending = _LINE_END.search(self._text, begin, close)
            if ending is not None:  # past a comment, which stays with its argument
                line_end = ending.start()
        comment = self._text[begin:line_end].decode()
        added = ",".join(f"{separator}{argument}" for argument in arguments)
        self._edit(begin, line_end, f"{'' if comma else ','}{comment}{added}{comma}")

    def add_first(self, statement: str) -> None:
        """Adds a line before all statements except the docstring and `__future__` imports.

        Raises:
            CannotEditError: The first statement has no line of its own.
        """
        for index, node in enumerate(self.tree.body):
            is_docstring = not index and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if is_docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                continue
            if self._indentation(self._span(node)[0]) is None:
                break
            line = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
            start = self._starts[line - 1]
            self._edit(start, start, statement + self._newline(start))
            return
        raise CannotEditError("the first statement that may follow a line of autotune's has no line of its own")

    def edited(self) -> bytes:
        """The file with all edits.

        Raises:
            CannotEditError: Two edits overlap, or their result is not Python.
        """
        text, before = self._text, len(self._text) + 1
        try:
            for (start, end), added in sorted(self._edits.items(), reverse=True):
                if end > before:
                    raise CannotEditError("stands where another one is changed")
                text, before = text[:start] + added.encode() + text[end:], start
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(text.decode(), "script", "exec", dont_inherit=True)
            return text.decode().encode(self._encoding)
        except (SyntaxError, ValueError) as error:
            raise CannotEditError(f"cannot be written in the script ({error})") from None

    def _edit(self, start: int, end: int, text: str) -> None:
        if self._edits.setdefault((start, end), text) != text:
            raise CannotEditError("stands where another one is changed")

    def _span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        """Where a node begins and ends."""
        end = self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        return self._starts[node.lineno - 1] + node.col_offset, end

    def _newline(self, offset: int) -> str:
        """The next line ending after an offset, or else the first one of the file."""
        match = _LINE_END.search(self._text, offset) or _LINE_END.search(self._text)
        return match[0].decode() if match is not None else "\n"

    def _indentation(self, offset: int) -> str | None:
        """The blanks before an offset in its line; None if other characters stand there."""
        before = self._text[max(start for start in self._starts if start <= offset) : offset]
        return None if before.strip(b" \t\f") else before.decode()


def last_name(node: ast.expr) -> str | None:
    """The last part of a name or an attribute."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


class Code(str):
    """An expression that is written into the source unchanged."""

    __slots__ = ()


def literal(value: object) -> str:
    """A value as people write it."""
    if isinstance(value, Code):
        return str(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
