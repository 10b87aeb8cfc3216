"""What the calls of two functions of torch show: whether attention runs, and what a cross-entropy is computed from."""

from __future__ import annotations

from typing import Any

import torch

from ..timing.loop import autocast_dtype
from ..torch_settings.undo import Undo, in_reverse
from . import hooks


class Functions:
    """Notes the calls while watched. Compiled code notes attention too, even after that.

    Attributes:
        attends: Whether torch's attention was called.
        classes: Classes of the largest scores that a cross-entropy was computed from; 0 if there was none.
        score_bytes: Bytes of these scores, as the cross-entropy computes them.
    """

    def __init__(self) -> None:
        self.attends = False
        self.classes = self.score_bytes = 0

    def watch(self) -> Undo:
        """Begins to note calls; the undo ends it."""
        return in_reverse(
            [
                hooks.on_function("scaled_dot_product_attention", self._on_attention),
                hooks.on_function("cross_entropy", self._on_cross_entropy),
            ]
        )

    def _on_attention(self, *_: Any, **__: Any) -> None:
        self.attends = True

    def _on_cross_entropy(self, *args: Any, **kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        scores = args[0] if args else kwargs["input"]
        element_bytes = 4 if autocast_dtype(scores.device.type) else scores.element_size()  # autocast keeps it in fp32
        if scores.requires_grad and scores.dim() > 1 and scores.numel() * element_bytes > self.score_bytes:
            self.classes, self.score_bytes = scores.shape[1], scores.numel() * element_bytes
