"""Hooks for MkDocs: warn of outdated generated parts, and resolve links into the repository and to it."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # describe this checkout, not an installed autotune

import made  # noqa: E402 - the line above must come first
from mkdocs.structure.files import File  # noqa: E402

_log = logging.getLogger("mkdocs.hooks.made")
_FOLDER = "repository"
_OUTSIDE = re.compile(r"(\]\()((?:\.\./)+)((?:benchmarks|results|tests)/[^)#\s]+)(\))")
_URL = re.compile(r"^Repository = \"(.+)\"$", re.MULTILINE)
_BELOW = re.compile(r"\]\(([\w][^):#\s]*)\)")


def on_config(config: Any) -> Any:
    """Takes the repository's URL from ``pyproject.toml``, its one place; without one the site has no such link."""
    if url := _URL.search((ROOT / "pyproject.toml").read_text(encoding="utf-8")):
        config.repo_url, config.repo_name = url[1], "/".join(url[1].split("/")[-2:])
    return config


def on_files(files: Any, config: Any) -> Any:
    """Copies files outside ``docs/`` that pages link to into the site, and the files below them that those link to."""
    pages = (file.content_string for file in list(files.documentation_pages()))
    linked = {link[3] for text in pages for link in _OUTSIDE.finditer(text)}
    for page in [path for path in linked if path.endswith(".md") and (ROOT / path).is_file()]:
        below = _BELOW.findall((ROOT / page).read_text(encoding="utf-8"))
        linked |= {str(Path(page).parent / name) for name in below}
    for path in sorted(linked):
        if (ROOT / path).is_file():  # a link to a missing file stays broken, and fails the build
            files.append(File.generated(config, f"{_FOLDER}/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Warns of an outdated generated part, which fails a strict build, and points links to the copies."""
    if made.remade(markdown) != markdown:
        _log.warning("%s is out of date: run python docs/_scripts/made.py", page.file.src_uri)
    up = "../" * page.file.src_uri.count("/")
    return _OUTSIDE.sub(lambda link: f"{link[1]}{up}{_FOLDER}/{link[3]}{link[4]}", markdown)
