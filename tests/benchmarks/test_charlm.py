"""The character-level language model: real text, windows of it, and a model that learns from them."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
import torch

from benchmarks import charlm
from benchmarks.plain import Loop

SMALL = {"layers": 1, "width": 32, "context": 32}


def test_text_is_the_standard_librarys_own() -> None:
    """Files follow one another whole, and it is always the same text."""
    text = charlm.read_text(200_000)
    first = min(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    assert len(text) == 200_000
    assert text.startswith(first.read_bytes())
    assert text == charlm.read_text(200_000)


def test_text_holds_no_files_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was installed beside the library, and tests that some distributions leave out, would make texts differ."""
    for content, name in enumerate(["a.py", "b.py", "json/c.py", "site-packages/d.py", "test/e.py"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(str(content))
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    assert charlm.read_text() == b"012"


def test_each_token_is_followed_by_the_next_byte() -> None:
    """A window's targets are its tokens, one further, up to the first of the next window."""
    windows = charlm.Windows(b"abcdefghij", context=3)
    tokens, following = windows[1]
    assert len(windows) == 3
    assert bytes(tokens.tolist()) == b"def"
    assert bytes(following.tolist()) == b"efg"
    assert tokens.dtype == torch.int64


def test_model_does_not_look_ahead() -> None:
    """A later token changes no earlier score: else it would learn to copy."""
    torch.manual_seed(0)
    model = charlm.CharGPT(**SMALL).eval()
    tokens = torch.randint(0, 256, (1, 32))
    changed = tokens.clone()
    changed[0, 20] = (changed[0, 20] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


@pytest.mark.slow
def test_loss_falls_within_twenty_steps() -> None:
    """It learns, with the optimizer and the clipping that it comes with."""
    torch.manual_seed(0)
    workload = charlm.build(**SMALL)
    loop = Loop(workload, workload.baseline_config, "cpu")
    steps = loop.steps()
    next(steps)
    first = float(loop.last_loss)
    for _ in range(20):
        next(steps)
    assert float(loop.last_loss) < 0.9 * first


def test_width_that_does_not_divide_is_refused() -> None:
    """A head has a fixed width; the message says which multiple is expected."""
    with pytest.raises(ValueError, match="multiple of 32"):
        charlm.build(width=100)
