"""The share of padding among a batch's tokens, where the batch itself clearly shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..torch_settings.naming import tensors_in

if TYPE_CHECKING:
    import torch

_MASKS = ("attention_mask", "padding_mask", "pad_mask")
"""Names that contain one of these are padding masks: others mask prediction targets, or a prompt."""
LEAST_TOKENS, LEAST_KINDS = 4, 8
"""Least tokens of a row, and least distinct ids besides padding: small tables of counts are not text. Not tuned."""
MOST_ELEMENTS = 2**24
"""Largest tensor that is checked: larger ones take longer than a step of most models."""


class Padding(NamedTuple):
    """The rows of one batch."""

    lengths: tuple[int, ...]  # tokens of each row, without padding
    width: int  # tokens of each row, with padding


def padded_fractions(batches: Sequence[Padding]) -> tuple[float | None, float | None]:
    """The share of padding in some batches, and in batches of the same rows sorted by length; None if unknown."""
    lengths = sorted(length for batch in batches for length in batch.lengths)
    size = max((len(batch.lengths) for batch in batches), default=0)
    in_order = sum(
        len(rows) * rows[-1] for start in range(0, len(lengths), size or 1) if (rows := lengths[start:][:size])
    )
    tokens = sum(len(batch.lengths) * batch.width for batch in batches)
    fraction = 1 - sum(lengths) / tokens if tokens else None
    return fraction, 1 - sum(lengths) / in_order if len(batches) > 1 and in_order else None


def padding_of(batch: Any) -> Padding | None:
    """Counts the padding of a batch of rows of tokens; None if the batch does not show it.

    Uses its attention or padding mask, else its tokens: an integer tensor whose rows end (or begin) with runs of one
    id, which occurs nowhere else, and whose runs differ in length.
    """
    for mask in _masks(batch):
        if (padding := _of_mask(mask)) is not None:
            return padding
    for tensor in tensors_in(batch):
        if _is_table(tensor) and not tensor.is_floating_point() and str(tensor.dtype) != "torch.bool":
            for rows in (tensor, tensor.flip(1)):
                if (padding := _of_tokens(rows)) is not None:
                    return padding
    return None


def _masks(batch: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yields the padding masks in a batch's mappings, by name."""
    parts = batch if isinstance(batch, Mapping) else getattr(batch, "data", None)  # a BatchEncoding keeps a dict there
    if isinstance(batch, (list, tuple)) and depth == 0:
        for part in batch:
            yield from _masks(part, 1)
    if isinstance(parts, Mapping):
        for name, value in parts.items():
            if isinstance(name, str) and any(word in name.lower() for word in _MASKS) and _is_table(value):
                yield value


def _is_table(value: Any) -> bool:
    """Whether a value is a tensor of several rows of several tokens."""
    if getattr(value, "ndim", None) != 2 or not hasattr(value, "dtype"):
        return False
    rows, tokens = value.shape
    return bool(rows > 1 and tokens >= LEAST_TOKENS and value.numel() <= MOST_ELEMENTS)


def _of_mask(mask: torch.Tensor) -> Padding | None:
    """Counts padding in a mask: each row has one run of tokens, in all rows at the left or in all at the right."""
    values = mask.unique()  # type: ignore[no-untyped-call]
    if len(values) == 1:
        return Padding((mask.shape[1],) * len(mask), mask.shape[1])
    turns = (mask[:, 1:] != mask[:, :-1]).sum(1)
    if len(values) > 2 or int(turns.max()) > 1:
        return None
    for edge, other in ((mask[:, 0], mask[:, -1]), (mask[:, -1], mask[:, 0])):
        if bool((edge == edge[0]).all()) and bool((other != edge[0]).any()):
            return Padding(tuple((mask == edge[0]).sum(1).tolist()), mask.shape[1])
    return None


def _of_tokens(rows: torch.Tensor) -> Padding | None:
    """Counts padding at the right."""
    ends = rows[:, -1:]
    runs = (rows == ends).flip(1).cummin(1).values.sum(1)
    padding = ends[int(runs.argmax()), 0]
    is_padding = rows == padding
    runs = is_padding.flip(1).cummin(1).values.sum(1)
    lengths = runs.unique()  # type: ignore[no-untyped-call]
    padded, padded_rows = int(runs.sum()), int((runs > 0).sum())
    chance = padded < len(runs) + LEAST_TOKENS or 2 * padded_rows < len(runs)  # may be coincidence
    if len(lengths) < 2 or padded != int(is_padding.sum()) or chance:
        return None
    if len(rows[~is_padding].unique()) < LEAST_KINDS:  # type: ignore[no-untyped-call]
        return None
    ended_by_it = int(runs.min()) > 0  # if the end-of-text id is the same, one token of each row is no padding
    return Padding(tuple((rows.shape[1] - runs + ended_by_it).tolist()), rows.shape[1])
