"""How many candidates are decided in 90 s of a script that cannot be forked and takes 10 s to its training loop.

    python -m benchmarks.unforkable

The script runs a thread, and computes on one alone, so that neighbours on a shared machine do not slow one side more
than the other; candidates differ in knobs that a live process switches, four in each challenge. What a look
at the script takes is not counted: a tuning pays it once, before its search.

Writes benchmarks/output/unforkable.json.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autotune.bursts.runner import ProcessRunner
from autotune.knobs import TrainConfig
from autotune.measuring import Point
from autotune.scripts import Script, ScriptIsolation
from autotune.search.stopping import plan_for
from benchmarks.output import save

SECONDS, TOGETHER = 90.0, 4
SCRIPT = """
import threading, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

open("starts.txt", "a").write("started\\n")
threading.Thread(target=threading.Event().wait, daemon=True).start()
time.sleep(10)
torch.set_num_threads(1)
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(16 * 28 * 28, 10))
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(4096, 3, 32, 32), torch.randint(0, 10, (4096,)))
for epoch in range(10_000):
    for images, labels in DataLoader(data, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
"""
CHOICES: dict[str, tuple[Any, ...]] = {
    "num_workers": (0, 1, 2), "optimizer_impl": ("default", "foreach", "fused"),
    "memory_format": ("contiguous", "channels_last"), "precision": ("fp32", "bf16"),
}  # fmt: skip


def candidates(baseline: TrainConfig, rng: random.Random) -> list[TrainConfig]:
    """All configs of the choices but the baseline, in random order."""
    chosen = [dict(zip(CHOICES, values, strict=True)) for values in itertools.product(*CHOICES.values())]
    configs = [baseline.replace(**{"persistent_workers": one["num_workers"] > 0, **one}) for one in chosen]
    return rng.sample([config for config in configs if config != baseline], k=len(configs) - 1)


def measure(folder: Path) -> dict[str, Any]:
    """Challenges one after the other, until time is up; what they decided."""
    (folder / "train.py").write_text(SCRIPT.replace('"starts.txt"', repr(str(folder / "starts.txt"))))
    script = Script((sys.executable, "train.py"), writable=(folder,))
    outcomes: list[str] = []
    ratios: list[float] = []
    decided = 0
    with ScriptIsolation(script) as isolation:
        isolation.start(SECONDS)
        runner = ProcessRunner(isolation, "cpu")
        baseline = Point(config=runner.check(SECONDS).baseline)
        points = [Point(config=config) for config in candidates(baseline.config, random.Random(0))]
        looked = (folder / "starts.txt").read_text().count("started")
        deadline = time.monotonic() + SECONDS
        for number in range(0, len(points), TOGETHER):
            began = time.monotonic()
            if (left := deadline - time.monotonic()) <= 0:
                break
            played = runner.challenge(baseline, points[number : number + TOGETHER], plan_for(), left, lambda *_: None)
            print(f"{time.monotonic() - began:.1f} s", file=sys.stderr)
            for burst, pair in played:
                outcomes.append(burst.outcome.value)
                decided += burst.ok and pair is not None and not pair.too_few
                ratios += [pair.ratio] if pair is not None else []
                print(f"  {outcomes[-1]}, {pair.ratio if pair is not None else 0:.3f} x", file=sys.stderr)
        runner.close()
        starts = (folder / "starts.txt").read_text().count("started") - looked
    return {"seconds": SECONDS, "decided": decided, "outcomes": outcomes, "ratios": ratios, "starts": starts}


def main() -> None:
    """Measures, prints and saves."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        figures = measure(Path(folder))
        os.chdir("/")
    print(f"{figures['decided']} candidates decided in {SECONDS:.0f} s, with {figures['starts']} starts of the script")
    print(save("unforkable", figures))


if __name__ == "__main__":
    main()
