"""CUDA_VISIBLE_DEVICES: numbers, UUIDs, slices, and the entries that CUDA does not understand."""

from __future__ import annotations

import dataclasses

import pytest

from autotune.hardware.nvidia import read_gpus
from autotune.hardware.probe import pin_gpu
from tests.hardware.readings import CardSpec, FakeNvml, partitioned_a100, rtx_3060, rtx_4070, rtx_a6000


def names(*cards: CardSpec, **environ: str) -> tuple[list[str], dict[str, str]]:
    """The visible cards, by the last word of their names, and what could not be read."""
    unread: dict[str, str] = {}
    gpus = read_gpus(FakeNvml(*cards), unread, environ=environ)
    assert [gpu.index for gpu in gpus] == list(range(len(gpus)))
    return [gpu.name.split()[-1] for gpu in gpus], unread


@pytest.mark.parametrize(
    ("wanted", "visible"),
    [
        ("1", ["4070"]),
        ("2,0", ["A6000", "3060"]),
        (" 1 , 2", ["4070", "A6000"]),
        ("GPU-40700000-0000", ["4070"]),
        ("GPU-a6,GPU-306", ["A6000", "3060"]),
        ("1,7,0", ["4070"]),
        ("1,-1,0", ["4070"]),
        ("0,0", []),
        ("", []),
        ("-1", []),
        ("none", []),
        ("GPU-", []),
    ],
)
def test_entries_are_followed_in_order(wanted: str, visible: list[str]) -> None:
    """CUDA stops at what it does not understand, and sees nothing when an entry is repeated."""
    found, unread = names(
        rtx_3060(), rtx_4070(), rtx_a6000(), CUDA_VISIBLE_DEVICES=wanted, CUDA_DEVICE_ORDER="PCI_BUS_ID"
    )
    assert found == visible
    assert ("gpus" in unread) == (visible == [])


def test_all_cards_are_visible_without_the_variable() -> None:
    """They keep the driver's order."""
    assert names(rtx_3060(), rtx_4070())[0] == ["3060", "4070"]


def test_order_of_unlike_cards_is_not_certain() -> None:
    """CUDA numbers the fastest first unless it is told otherwise: that is said, not guessed."""
    assert "gpus.order" in names(rtx_3060(), rtx_4070())[1]
    assert "gpus.order" not in names(rtx_3060(), rtx_4070(), CUDA_DEVICE_ORDER="PCI_BUS_ID")[1]
    assert "gpus.order" not in names(rtx_3060(), rtx_4070(), CUDA_VISIBLE_DEVICES="GPU-407")[1]
    assert "gpus.order" not in names(rtx_3060(), dataclasses.replace(rtx_3060(), uuid="GPU-2"))[1]


def test_numbers_of_unlike_cards_may_mean_any_of_them() -> None:
    """All are read, the named one first, so that torch's UUIDs can decide; a number that no card has names none."""
    found, unread = names(rtx_3060(), rtx_4070(), rtx_a6000(), CUDA_VISIBLE_DEVICES="1")
    assert found == ["4070", "3060", "A6000"]
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in unread["gpus.visible"]
    assert names(rtx_3060(), rtx_4070(), CUDA_VISIBLE_DEVICES="7")[0] == []


def test_numbers_that_name_all_unlike_cards_leave_only_their_order_open() -> None:
    """Whatever the numbers mean, every card may be used."""
    found, unread = names(rtx_3060(), rtx_4070(), CUDA_VISIBLE_DEVICES="1,0")
    assert found == ["4070", "3060"]
    assert set(unread) & {"gpus.order", "gpus.visible"} == {"gpus.order"}


@pytest.mark.parametrize(
    ("wanted", "visible"),
    [
        ("MIG-10000000-0000", ["1g.5gb"]),
        ("MIG-1", ["1g.5gb"]),
        ("MIG-10000000-0000,MIG-30000000-0000", ["1g.5gb"]),
        ("0", ["3g.20gb"]),
        ("GPU-a1000000-0000", ["3g.20gb"]),
        ("MIG-nowhere", []),
    ],
)
def test_slices_are_named_by_their_own_uuid(wanted: str, visible: list[str]) -> None:
    """A process uses one slice at most, and a partitioned card means its first slice."""
    assert names(partitioned_a100(), CUDA_VISIBLE_DEVICES=wanted)[0] == visible


def test_one_slice_is_visible_without_the_variable() -> None:
    """CUDA takes the first of several."""
    assert names(partitioned_a100())[0] == ["3g.20gb"]


def test_partitioned_card_without_a_slice_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """MIG mode alone makes no device."""
    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetMigMode", lambda *_: [1, 1])
    found, unread = names(rtx_a6000())
    assert found == []
    assert "no slice" in unread["gpus"]


def test_driver_without_cards() -> None:
    """A container without device access has a driver that lists nothing."""
    found, unread = names()
    assert found == []
    assert "lists no GPU" in unread["gpus"]


def test_of_several_cards_the_freest_is_tuned() -> None:
    """By its UUID, so that this process and all that it starts see the same one, and no other."""
    busy = dataclasses.replace(rtx_4070(), used_bytes=11 * 2**30)
    environ: dict[str, str] = {}
    told = pin_gpu(environ, FakeNvml(busy, rtx_3060()))
    assert "of 2 GPUs, number 1 (NVIDIA GeForce RTX 3060)" in (told or "")
    assert [gpu.name for gpu in read_gpus(FakeNvml(busy, rtx_3060()), {}, environ)] == ["NVIDIA GeForce RTX 3060"]


def test_a_choice_that_was_made_stays() -> None:
    """One card, or one that the variable names: nothing is set."""
    assert pin_gpu({}, FakeNvml(rtx_4070())) is None
    environ = {"CUDA_VISIBLE_DEVICES": "0"}
    assert pin_gpu(environ, FakeNvml(rtx_4070(), rtx_3060())) is None
    assert environ == {"CUDA_VISIBLE_DEVICES": "0"}


def test_of_unlike_cards_that_are_all_allowed_the_freest_is_tuned() -> None:
    """By its UUID, which means the same card in each order."""
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert pin_gpu(environ, FakeNvml(dataclasses.replace(rtx_3060(), used_bytes=11 * 2**30), rtx_4070())) is not None
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-40700000-0000"


@pytest.mark.parametrize(("order", "chosen"), [({}, "0,1"), ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "GPU-40700000-0000")])
def test_no_card_is_chosen_that_cuda_may_hide(order: dict[str, str], chosen: str) -> None:
    """Of three unlike cards, two are named by numbers that may mean others."""
    environ = {"CUDA_VISIBLE_DEVICES": "0,1", **order}
    cards = (dataclasses.replace(rtx_3060(), used_bytes=11 * 2**30), rtx_4070(), rtx_a6000())
    assert (pin_gpu(environ, FakeNvml(*cards)) is None) is (chosen == "0,1")
    assert environ["CUDA_VISIBLE_DEVICES"] == chosen
