"""Decides which NVIDIA devices a CUDA program would see, by the rules of ``CUDA_VISIBLE_DEVICES``.

NVML always lists every card in bus order; CUDA lists the cards that the variable names, in its order. Without these
rules, facts about one card would be attributed to another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Card:
    """A whole card; its handle is None if it does not answer.

    In MIG mode it is partitioned: CUDA sees its slices, never the card itself.
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

    CUDA stops at the first invalid entry, sees no device if an entry is repeated, and uses at most one slice.

    Args:
        cards: Every card in bus order.
        unread: Receives the reason if no device is visible, or the order is uncertain.
        environ: The environment variables.
    """
    variable = environ.get("CUDA_VISIBLE_DEVICES")
    if not cards:
        unread["gpus"] = "the NVIDIA driver answers, but lists no GPU"
        return ()
    if variable is None:
        whole = [card for card in cards if card.handle is not None and not card.partitioned]
        slices = [part for card in cards for part in card.slices]
        chosen: list[Card | Slice] = [*whole] or [*slices[:1]]
        if not chosen:
            unread["gpus"] = "every GPU is partitioned (MIG), and no slice has been made"
    else:
        chosen = _named(cards, variable)
        if not chosen:
            unread["gpus"] = f"CUDA_VISIBLE_DEVICES={variable!r} names none of the {len(cards)} NVIDIA GPUs"
    by_number = variable is None or re.match(r"\s*\d", variable)
    if by_number and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({card.name for card in cards}) > 1:
        unread["gpus.order"] = "CUDA numbers the fastest card first, NVML by bus; set CUDA_DEVICE_ORDER=PCI_BUS_ID"
    first = next((device for device in chosen if isinstance(device, Slice)), None)
    return tuple(device for device in chosen if not isinstance(device, Slice) or device is first)


def _named(cards: Sequence[Card], variable: str) -> list[Card | Slice]:
    """The devices that the variable's entries name, in their order."""
    chosen: list[Card | Slice] = []
    for entry in variable.split(","):
        device = _device(cards, entry.strip())
        if device is None:
            break
        if any(device is other for other in chosen):
            return []
        chosen.append(device)
    return chosen


def _device(cards: Sequence[Card], entry: str) -> Card | Slice | None:
    """The device that an entry names: by number, or by the start of a UUID that fits only one device."""
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
    if whole[0].partitioned:  # naming it selects its first slice
        return whole[0].slices[0] if whole[0].slices else None
    return whole[0] if whole[0].handle is not None else None
