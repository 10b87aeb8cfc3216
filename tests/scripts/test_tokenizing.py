"""What a script has started tells whether it can be forked: threads of tokenizers, and processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.forked import Forked

CODE = """
from autotune.recorder import server, tokenizing
tokenizing.watch_tokenizers()
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
words = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
words.encode("a")
print(server.unsafe_reason())
words.encode_batch(["a", "a"])
print(server.unsafe_reason())
"""


ENDED = """
try:
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
except ChildProcessError:
    pass
"""
"""What a process prints may end before the process: waits for that, and asks for nothing."""


@pytest.mark.parametrize(("asked", "is_unsafe"), [(None, True), ("true", True), ("false", False)])
def test_a_process_is_not_forked_in_which_tokenizers_runs_threads(
    asked: str | None, is_unsafe: bool, tmp_path: Path, forked: Forked
) -> None:
    """Its copies would tokenize with one thread, or wait for ever; where it is told to use none, it is forked."""
    pytest.importorskip("tokenizers")
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    environment |= {"TOKENIZERS_PARALLELISM": asked} if asked is not None else {}
    (tmp_path / "code.py").write_text(CODE)
    before, after = forked.run(("code.py",), tmp_path, environment).stdout.splitlines()
    assert (before, "tokenizers runs threads" in after) == ("None", is_unsafe)


@pytest.mark.parametrize(("asks", "told"), [("", "the script has started processes"), (".read()", "None")])
def test_a_process_that_has_ended_is_no_reason_not_to_fork(
    asks: str, told: str, tmp_path: Path, forked: Forked
) -> None:
    """Nobody has asked yet how it did: ``os.popen("stty size").read()`` leaves one."""
    command = "true" if asks else "exec sleep 60"
    code = f"import os\nfrom autotune.recorder import server\nran = os.popen('{command}'){asks}\n"
    code += ENDED if asks else ""
    code += "print(server.unsafe_reason())\n" + ("" if asks else "ran._proc.kill()\n")
    (tmp_path / "code.py").write_text(code)
    assert forked.run(("code.py",), tmp_path).stdout.strip() == told
