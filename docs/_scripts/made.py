"""Generates parts of pages, and pictures, from the code and from benchmark figures, so that they stay up to date.

A page marks such a part by ``<!-- made: NAME -->`` and ``<!-- made: end -->``. The text between them is committed, so
that a page reads well in the repository too. ``python docs/_scripts/made.py`` regenerates all parts, and the build of
the site fails where one is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import benchmark_pictures
import benchmark_tables
import command_reference
import file_tree
import knob_table
import rooms_picture
import sample_result
import schema_reference
import verified

DOCS = Path(__file__).parents[1]
_PART = re.compile(r"(<!-- made: (?!end)([\w-]+) -->\n)(.*?)(<!-- made: end -->)", flags=re.DOTALL)
MAKERS: dict[str, Callable[[], str]] = {
    "commands": command_reference.text,
    "files": file_tree.text,
    "knobs": knob_table.text,
    "notes": schema_reference.notes,
    "sample": sample_result.text,
    "schema": schema_reference.text,
    "verified": verified.text,
    "verified-cards": verified.cards,
    "verified-half-hours": verified.half_hours,
    **{f"benchmarks-{name}": maker for name, maker in benchmark_tables.TABLES.items()},
}


def remade(markdown: str) -> str:
    """A page with all its generated parts regenerated.

    Raises:
        KeyError: A part's name has no maker.
    """
    return _PART.sub(lambda part: f"{part[1]}\n{MAKERS[part[2]]().strip()}\n\n{part[4]}", markdown)


def main(arguments: Sequence[str]) -> int:
    """Writes every page and picture that has changed, and prints its name; with ``--check`` only prints, and fails."""
    check = "--check" in arguments
    pages = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
    texts = {page: remade(page.read_text(encoding="utf-8")) for page in pages}
    texts |= {DOCS / "pictures" / name: draw() for name, draw in benchmark_pictures.PICTURES.items()}
    texts[DOCS / "architecture" / "rooms.svg"] = rooms_picture.text()
    changed = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in changed:
        sys.stdout.write(f"{path.relative_to(DOCS.parent)}{' is out of date' if check else ''}\n")
        if not check:
            path.write_text(texts[path], encoding="utf-8")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent))  # describe this checkout, not an installed autotune
    raise SystemExit(main(sys.argv[1:]))
