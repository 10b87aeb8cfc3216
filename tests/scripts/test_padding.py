"""Which tokens of a batch are padding beyond doubt, and what a step moves through memory at least."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from autotune.timing.loop import traffic_of
from autotune.timing.padding import Padding, padded_fractions, padding_of

LENGTHS = (3, 10, 7, 12)
PADDED, TOKENS = 16, 48


def texts(padding: int = 0) -> torch.Tensor:
    """Texts of four lengths as one tensor."""
    torch.manual_seed(0)
    return pad_sequence(
        [torch.randint(1, 100, (length,)) for length in LENGTHS], batch_first=True, padding_value=padding
    )


MASK = (texts() != 0).long()
WHOLE = torch.randint(1, 100, (4, 12), generator=torch.Generator().manual_seed(0))
WITH_ENDS = torch.cat([texts(200), torch.full((4, 1), 200)], 1)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (texts(), (PADDED, TOKENS)),
        (texts().flip(1), (PADDED, TOKENS)),
        ((texts(-100), torch.arange(4)), (PADDED, TOKENS)),
        ({"input_ids": WHOLE, "attention_mask": MASK}, (PADDED, TOKENS)),
        (UserDict(input_ids=WHOLE, attention_mask=MASK.bool()), (PADDED, TOKENS)),
        ([{"src_key_padding_mask": MASK.flip(1) == 0}], (PADDED, TOKENS)),
        ({"input_ids": WHOLE, "attention_mask": torch.ones(4, 12)}, (0, TOKENS)),
        (WITH_ENDS, (PADDED, TOKENS + 4)),
        (WHOLE, None),
        ({"input_ids": WHOLE, "loss_mask": MASK}, None),
        ({"attention_mask": torch.eye(4, 12)}, None),
        (torch.ones(4, 12).tril(), None),
        (torch.ones(4, 12, dtype=torch.long).tril(), None),
        (torch.arange(48).reshape(4, 12), None),
        (texts()[:1], None),
        (torch.randn(4, 3, 8, 8), None),
        ("no tensor", None),
    ],
    ids=[
        "right", "left", "labels", "mask", "mask in a BatchEncoding", "padding mask", "nothing masked",
        "padded with the end of texts", "no padding", "another mask", "a mask of pairs", "numbers", "few kinds",
        "no repetition", "one row", "images", "text",
    ],
)  # fmt: skip
def test_only_what_is_certainly_padding_is_counted(batch: Any, expected: tuple[int, int] | None) -> None:
    """By a mask of padding, or one id that ends or begins rows and stands nowhere else; None where neither is there."""
    found = padding_of(batch)
    tokens = found.width * len(found.lengths) if found is not None else 0
    assert (found and (tokens - sum(found.lengths), tokens)) == expected


def test_rows_in_order_of_length_hold_less_padding() -> None:
    """Two batches of a short and a long row each, of rows that fit together."""
    batches = [Padding((2, 10), 10), Padding((10, 2), 10)]
    assert padded_fractions(batches) == (0.4, 0.0)
    assert padded_fractions(batches[:1]) == (0.4, None)
    assert padded_fractions([]) == (None, None)


def test_tables_of_numbers_are_no_padded_texts() -> None:
    """None of two thousand random tables, however few its rows and kinds, seems to be padded."""
    torch.manual_seed(0)

    def table() -> torch.Tensor:
        kinds, rows, columns = (int(torch.randint(low, high, ())) for low, high in ((2, 200), (2, 64), (4, 64)))
        return torch.randint(0, kinds, (rows, columns))

    assert not any(padding_of(table()) for _ in range(2000))


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, *batch: torch.Tensor) -> torch.optim.Optimizer:
    """After a step."""
    model(*batch).sum().backward()
    optimizer.step()
    return optimizer


def test_a_step_moves_weights_gradients_and_state() -> None:
    """Of AdamW: weights read twice and gradients written a pass; gradients read, the rest read and written a step."""
    model = nn.Linear(100, 10, bias=False)
    weights = 4 * 1000
    adam = trained(model, torch.optim.AdamW(model.parameters()), torch.ones(2, 100))
    assert traffic_of([model], [adam]) == (3 * weights, 3 * weights + 4 * weights)
    plain = trained(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(2, 100))
    assert traffic_of([model], [plain]) == (3 * weights, 3 * weights)


def test_rows_that_are_looked_up_are_not_all_read() -> None:
    """An embedding's gradient is written and its weights are updated; tied to the output, it is read as well."""
    model = nn.Sequential(nn.Embedding(100, 10), nn.Linear(10, 100, bias=False))
    weights = 4 * 1000
    optimizer = trained(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.tensor([1, 2]))
    assert traffic_of([model], [optimizer]).pass_bytes == (1 + 3) * weights
    model[1].weight = model[0].weight
    tied = trained(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.tensor([1, 2]))
    assert traffic_of([model], [tied]).pass_bytes == 3 * weights


def test_frozen_and_unused_weights_cost_no_update() -> None:
    """A frozen layer is read once a pass; one that no gradient reaches is not counted."""
    frozen, used, unused = (nn.Linear(10, 10, bias=False) for _ in range(3))
    frozen.weight.requires_grad_(requires_grad=False)
    model = nn.ModuleList([frozen, used, unused])
    optimizer = torch.optim.AdamW(model.parameters())
    used(frozen(torch.ones(2, 10))).sum().backward()
    optimizer.step()
    assert traffic_of([model], [optimizer]) == ((1 + 3) * 400, 7 * 400)
