"""Copies that do not wait: of a batch's page-locked memory alone, and never where the script says it itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autotune.torch_settings import copies as under_test
from autotune.torch_settings.copies import Copies


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How ``Tensor.to`` and ``Tensor.cuda`` are called; without a GPU no memory can be page-locked, so all is."""
    calls: list[dict[str, Any]] = []

    def copy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append({"args": args, **kwargs})
        return torch.empty(tensor.shape, device="meta")

    monkeypatch.setattr(under_test, "is_pinned", lambda tensor: tensor.device.type == "cpu")
    monkeypatch.setattr(torch.Tensor, "to", copy)
    monkeypatch.setattr(torch.Tensor, "cuda", copy)
    return calls


def test_a_batch_and_its_parts_are_copied_without_waiting(asked: list[dict[str, Any]]) -> None:
    """By either way, also a slice of one of its tensors."""
    copies = Copies()
    copies.install()
    batch = {"x": torch.zeros(4, 4), "y": [torch.zeros(4)]}
    copies.drawn(batch)
    batch["x"].to("cuda")
    batch["x"][:, 1:].to("cuda", torch.float16)
    batch["y"][0].cuda()
    assert [call.get("non_blocking") for call in asked] == [True, True, True]
    assert copies.overlapped == 3


def test_what_is_no_batch_waits(asked: list[dict[str, Any]]) -> None:
    """The script's own page-locked memory, which it may write to again, and what comes back from a device."""
    copies = Copies()
    copies.install()
    torch.zeros(4).to("cuda")
    copies.drawn([torch.zeros(4)])
    torch.zeros(4).to("cuda")
    torch.empty(4, device="meta").to("cpu")
    assert [call.get("non_blocking") for call in asked] == [None, None, None]
    assert copies.overlapped == 0


def test_a_batch_of_long_ago_waits(asked: list[dict[str, Any]]) -> None:
    """Its memory may be somebody else's by now."""
    copies = Copies()
    copies.install()
    first, others = torch.zeros(4), [torch.zeros(4) for _ in range(under_test.RECENT)]
    for tensor in (first, *others):
        copies.drawn(tensor)
    first.to("cuda")
    assert "non_blocking" not in asked[0]


@pytest.mark.parametrize(
    ("args", "named"), [(("cuda", torch.float32, False), {}), (("cuda",), {"non_blocking": False})]
)
def test_what_the_script_says_itself_holds(
    args: tuple[Any, ...], named: dict[str, Any], asked: list[dict[str, Any]]
) -> None:
    """By its place or by name."""
    copies = Copies()
    copies.install()
    batch = torch.zeros(4)
    copies.drawn(batch)
    batch.to(*args, **named)
    assert asked == [{"args": args, **named}]


def test_memory_that_is_not_page_locked_is_left_alone() -> None:
    """As on a machine without a GPU, by the tensors' own word."""
    copies = Copies()
    copies.drawn(torch.zeros(4))
    assert not copies.may_overlap(torch.zeros(4))
