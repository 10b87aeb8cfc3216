"""The pages that a person reads, and the code in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").rglob("*.md")))


def text_of(page: Path | str) -> str:
    """What stands in a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: Path | str, language: str) -> list[str]:
    """A page's code blocks of a language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text_of(page), flags=re.DOTALL | re.MULTILINE)
    return [text for name, text in fenced if name == language]


def block(page: Path | str, words: str, language: str = "python") -> str:
    """A page's one code block that holds some words."""
    (found,) = (text for text in blocks(page, language) if words in text)
    return found


def name_of(page: Path) -> str:
    """A page's path from the root, for the name of a test."""
    return str(page.relative_to(ROOT))
