"""What a script raises is told in one line that names the fault."""

from __future__ import annotations

import pytest

from autotune.timing.failing import sentence_of

MIRRORS = (
    "Error downloading t10k.gz:\nTried https://a.org/, got:\n\n<urlopen error timed out>\nTried https://b.org/, got:\n"
)
WORKERS = "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\nKeyError: 3"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no such column\nsee the manual", "no such column"),
        (MIRRORS, "Error downloading t10k.gz: Tried https://a.org/, got: <urlopen error timed out>"),
        ("Failed\n  to open the lock file", "Failed: to open the lock file"),
        ("CUDA error.\n\nsee above", "CUDA error. see above"),
        ("short", "short"),
        ("nothing follows:\n\n", "nothing follows"),
        ("\n\nno such column", "no such column"),
        (WORKERS, "KeyError: 3"),
        ("", "no message"),
    ],
)
def test_an_error_is_told_by_its_first_line_and_what_that_announces(text: str, told: str) -> None:
    """A line that ends with a colon, or says next to nothing, is told with those that follow."""
    assert sentence_of(ValueError(text)) == f"ValueError: {told}"


@pytest.mark.parametrize("line", ["ValueError: broken file", "pictures.errors.ValueError: broken file"])
def test_an_error_of_a_worker_names_its_type_once(line: str) -> None:
    """Torch raises it again in the training process, as the same type."""
    text = f"Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n{line}"
    assert sentence_of(ValueError(text)) == "ValueError: broken file"


def test_what_is_told_stays_short() -> None:
    """However much is announced."""
    assert len(sentence_of(ValueError("\n".join(["it failed by:"] * 100)))) < 500
    assert len(sentence_of(ValueError("x" * 1000))) < 500
