"""The name by which `confirmation` imports what two bursts that ran one after the other may be off by."""

from autotune.measuring.pairs import APART_ERROR

__all__ = ["APART_ERROR"]
