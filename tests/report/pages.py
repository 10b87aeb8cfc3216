"""Reads a page as a parser does: what is on it, and whether it is well made."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr", "wbr"}


class Page(HTMLParser):
    """A parsed page.

    Attributes:
        text: All that a reader sees, and what pictures say of themselves, with single spaces.
        tags: Each with its attributes, in order.
        problems: Tags that are not closed, or closed twice.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.problems: list[str] = []
        self._open: list[str] = []
        self._words: list[str] = []
        self.feed(html)
        self.close()
        self.problems += [f"<{tag}> is not closed" for tag in self._open]
        self.text = " ".join(" ".join(self._words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes a tag."""
        self.tags.append((tag, dict(attrs)))
        if label := dict(attrs).get("aria-label"):
            self._words.append(label)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes a tag that has no content."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Looks whether it closes what was opened last."""
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        """Keeps what is read, the style sheet left out."""
        if not self._open or self._open[-1] != "style":
            self._words.append(data)

    def attributes(self, name: str) -> list[str]:
        """The values of an attribute, wherever it is."""
        return [value for _, attributes in self.tags for key, value in attributes.items() if key == name and value]

    def of(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of all tags of a kind."""
        return [attributes for name, attributes in self.tags if name == tag]
