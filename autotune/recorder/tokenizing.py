"""Detects whether Hugging Face's tokenizers have started threads, which Python does not list, and a fork loses.

A forked process would tokenize with one thread from then on, a precaution of tokenizers. With
``TOKENIZERS_PARALLELISM=true`` it would wait forever for the missing threads.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from .importing import after_import

_IN_PARALLEL = (
    "encode_batch", "encode_batch_fast", "async_encode_batch", "async_encode_batch_fast", "decode_batch",
    "async_decode_batch", "train", "train_from_iterator",
)  # fmt: skip
"""Methods of `tokenizers.Tokenizer` that use threads; the first call starts them."""
_OFF = ("", "off", "false", "f", "no", "n", "0")
_uses_threads = [False]


def watch_tokenizers() -> None:
    """Notes from here on whether tokenizers start threads."""
    after_import("tokenizers", _watch)


def why_tokenizers_forbid() -> str | None:
    """Why use of tokenizers keeps this process from being forked; None if nothing does."""
    if _uses_threads[0]:
        return "tokenizers runs threads of its own, unless TOKENIZERS_PARALLELISM=false is set"
    return None


def _watch() -> None:
    kind: Any = sys.modules["tokenizers"].Tokenizer
    for name in _IN_PARALLEL:
        if hasattr(kind, name):
            try:
                setattr(kind, name, _noting(getattr(kind, name)))
            except TypeError:  # an immutable class: assumes that it is used
                _note()


def _noting(original: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        _note()
        return original(*args, **kwargs)

    return call


def _note() -> None:
    _uses_threads[0] |= os.environ.get("TOKENIZERS_PARALLELISM", "true").lower() not in _OFF
