"""The share of a batch's tokens that are padding, as far as the batch itself shows it beyond doubt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .naming import tensors_in

if TYPE_CHECKING:
    import torch

_MASKS = ("attention_mask", "padding_mask", "pad_mask")
"""What ends so, or contains the second or third, masks padding: others mask what is to be predicted, or a prompt."""
LEAST_TOKENS, LEAST_KINDS = 4, 8
"""Of a row, and of ids that are no padding: tables of a few counts are no texts. Not tuned."""
MOST_ELEMENTS = 2**24
"""Of a tensor that is looked at: more take longer than a step of most models."""


class Padding(NamedTuple):
    """Tokens of some batches.

    Attributes:
        padded: That are padding.
        tokens: In all.
    """

    padded: int
    tokens: int


def padding_of(batch: Any) -> Padding | None:
    """The padding of a batch of rows of tokens; None where the batch does not show whether it has any.

    By its attention or padding mask, else by its tokens: a tensor of whole numbers whose rows end (or begin) with one
    id, which occurs nowhere else, and as often as no other row's.
    """
    for mask in _masks(batch):
        if (found := _of_mask(mask)) is not None:
            return found
    for tensor in tensors_in(batch):
        if _is_table(tensor) and not tensor.is_floating_point() and str(tensor.dtype) != "torch.bool":
            for rows in (tensor, tensor.flip(1)):
                if (found := _of_tokens(rows)) is not None:
                    return found
    return None


def _masks(batch: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """What its mappings call a mask of padding."""
    parts = batch if isinstance(batch, Mapping) else getattr(batch, "data", None)  # a BatchEncoding keeps a dict there
    if isinstance(batch, (list, tuple)) and depth == 0:
        for part in batch:
            yield from _masks(part, 1)
    if isinstance(parts, Mapping):
        for name, value in parts.items():
            if isinstance(name, str) and any(word in name.lower() for word in _MASKS) and _is_table(value):
                yield value


def _is_table(value: Any) -> bool:
    """Whether it is a tensor of several rows of several tokens."""
    if getattr(value, "ndim", None) != 2 or not hasattr(value, "dtype"):
        return False
    rows, tokens = value.shape
    return bool(rows > 1 and tokens >= LEAST_TOKENS and value.numel() <= MOST_ELEMENTS)


def _of_mask(mask: torch.Tensor) -> Padding | None:
    """Whichever of its two values marks padding: rows are of one piece, at the left in all or at the right in all."""
    values = mask.unique()  # type: ignore[no-untyped-call]
    if len(values) == 1:
        return Padding(0, mask.numel())
    turns = (mask[:, 1:] != mask[:, :-1]).sum(1)
    if len(values) > 2 or int(turns.max()) > 1:
        return None
    for edge, other in ((mask[:, 0], mask[:, -1]), (mask[:, -1], mask[:, 0])):
        if bool((edge == edge[0]).all()) and bool((other != edge[0]).any()):
            return Padding(int((mask != edge[0]).sum()), mask.numel())
    return None


def _of_tokens(rows: torch.Tensor) -> Padding | None:
    """Padding at the right."""
    tokens = rows.shape[1]
    ends = rows[:, -1:]
    runs = (rows == ends).flip(1).cummin(1).values.sum(1)
    padding = ends[int(runs.argmax()), 0]
    is_padding = rows == padding
    runs = is_padding.flip(1).cummin(1).values.sum(1)
    lengths = runs.unique()  # type: ignore[no-untyped-call]
    padded, padded_rows = int(runs.sum()), int((runs > 0).sum())
    chance = padded < len(runs) + LEAST_TOKENS or 2 * padded_rows < len(runs)  # the rows may just happen to end so
    if len(lengths) < 2 or padded != int(is_padding.sum()) or chance:
        return None
    if len(rows[~is_padding].unique()) < LEAST_KINDS:  # type: ignore[no-untyped-call]
        return None
    ended_by_it = int(runs.min()) > 0  # where the end of a text has the same id, one of each row is none
    return Padding(padded - ended_by_it * len(runs), tokens * len(runs))
