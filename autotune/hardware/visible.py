"""Decides which NVIDIA devices a CUDA program would see, by the rules of ``CUDA_VISIBLE_DEVICES``.

NVML always lists every card in bus order; CUDA lists what the variable names, in its order. Without these
rules the facts of one card would be told about another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Card:
    """A whole card; its handle is None when it does not answer.

    In MIG mode it is partitioned: then CUDA sees its slices, never the card itself.
    """

    handle: Any
    uuid: str  # GPU-…
    name: str
    partitioned: bool
    slices: list[Slice] = field(default_factory=list)


@dataclass(frozen=True)
class Slice:
    """A slice of a partitioned card."""

    handle: Any
    uuid: str  # MIG-…
    card: Card


def select(cards: Sequence[Card], unread: dict[str, str], environ: Mapping[str, str]) -> tuple[Card | Slice, ...]:
    """The devices that CUDA would number 0, 1, ….

    CUDA stops at the first entry that it does not understand, sees nothing when an entry is repeated, and
    uses one slice at most.

    Args:
        cards: Every card in bus order.
        unread: Takes the reason when there is nothing to see, or when the order is not certain.
        environ: The environment variables.
    """
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if not cards:
        unread["gpus"] = "the NVIDIA driver answers, but lists no GPU"
        return ()
    if wanted is None:
        whole = [card for card in cards if card.handle is not None and not card.partitioned]
        slices = [part for card in cards for part in card.slices]
        chosen: list[Card | Slice] = [*whole] or [*slices[:1]]
        if not chosen:
            unread["gpus"] = "every GPU is partitioned (MIG), and no slice has been made"
    else:
        chosen = _named(cards, wanted)
        if not chosen:
            unread["gpus"] = f"CUDA_VISIBLE_DEVICES={wanted!r} names none of the {len(cards)} NVIDIA GPUs"
    by_number = wanted is None or re.match(r"\s*\d", wanted)
    if by_number and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({card.name for card in cards}) > 1:
        unread["gpus.order"] = "CUDA numbers the fastest card first, NVML by bus; set CUDA_DEVICE_ORDER=PCI_BUS_ID"
    first = next((device for device in chosen if isinstance(device, Slice)), None)
    return tuple(device for device in chosen if not isinstance(device, Slice) or device is first)


def _named(cards: Sequence[Card], wanted: str) -> list[Card | Slice]:
    """What the entries of the variable name, in their order."""
    chosen: list[Card | Slice] = []
    for entry in wanted.split(","):
        device = _device(cards, entry.strip())
        if device is None:
            break
        if any(device is other for other in chosen):
            return []
        chosen.append(device)
    return chosen


def _device(cards: Sequence[Card], entry: str) -> Card | Slice | None:
    """The device that one entry names: a number, or the start of a UUID that fits one device only."""
    kind = entry[:4].upper()
    if kind == "MIG-":
        slices = [part for card in cards for part in card.slices if part.uuid.lower().startswith(entry.lower())]
        return slices[0] if len(slices) == 1 else None
    if number := re.match(r"\d+", entry):
        whole = cards[int(number[0]) :][:1]
    else:
        whole = [card for card in cards if kind == "GPU-" and card.uuid.lower().startswith(entry.lower())]
    if len(whole) != 1:
        return None
    if whole[0].partitioned:  # to name it means its first slice
        return whole[0].slices[0] if whole[0].slices else None
    return whole[0] if whole[0].handle is not None else None
