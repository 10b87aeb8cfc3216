"""Whether Hugging Face's tokenizers have started threads, of which Python knows nothing, and a fork has none.

A forked process would tokenize with one thread from then on, by tokenizers' own precaution, or wait for ever for those
that it does not have, where the script says ``TOKENIZERS_PARALLELISM=true``.
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
"""Methods of `tokenizers.Tokenizer` that share their work among threads; the first starts them."""
_OFF = ("", "off", "false", "f", "no", "n", "0")
_uses_threads = [False]


def watch_tokenizers() -> None:
    """From here on it is noted whether they start threads."""
    after_import("tokenizers", _watch)


def why_no_fork() -> str | None:
    """Why a process cannot be forked that has used them; None where it can."""
    if _uses_threads[0]:
        return "tokenizers runs threads of its own, unless TOKENIZERS_PARALLELISM=false is set"
    return None


def _watch() -> None:
    kind: Any = sys.modules["tokenizers"].Tokenizer
    for name in _IN_PARALLEL:
        if hasattr(kind, name):
            try:
                setattr(kind, name, _noting(getattr(kind, name)))
            except TypeError:  # a class that nobody may change: they are taken for used
                _note()


def _noting(original: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        _note()
        return original(*args, **kwargs)

    return call


def _note() -> None:
    _uses_threads[0] |= os.environ.get("TOKENIZERS_PARALLELISM", "true").lower() not in _OFF
