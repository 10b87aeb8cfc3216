"""Whatever keeps the recorder from tuning, the script trains as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from autotune.scripts.script import Script

OLD_TORCH = '__version__ = "1.0"\n'


def test_a_torch_that_is_too_old_ends_no_script(tmp_path: Path) -> None:
    """One line says why nothing is tuned; a folder that is gone is no reason either."""
    (tmp_path / "torch.py").write_text(OLD_TORCH)
    (tmp_path / "train.py").write_text("import torch\nprint('trained')\n")
    command = (sys.executable, "train.py")
    orders = {"role": "train", "socket": str(tmp_path / "nobody"), "shared": str(tmp_path / "gone"), "allowed": []}
    environment = Script(command).environment(orders, os.environ)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "expected torch 2.7 or newer, got 1.0; training continues unchanged" in done.stderr
