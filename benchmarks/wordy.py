"""A training script that is slow to start, as real ones are: it imports a framework, and prepares its data set.

    python benchmarks/wordy.py

It knows nothing of autotune. Its text is Python's own library, cut into words; it guesses the word after each four.
"""

import re
import sysconfig
from collections import Counter
from pathlib import Path

import torch
import transformers  # for its schedule of the learning rate, as people do
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CONTEXT, MOST_WORDS, MOST_FILES = 4, 5000, 400


def windows() -> TensorDataset:
    """All windows of so many words, and the word after each."""
    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))[:MOST_FILES]
    words = [word for file in files for word in re.findall(r"\w+|[^\w\s]", file.read_text(errors="replace"))]
    known = {word: number for number, (word, _) in enumerate(Counter(words).most_common(MOST_WORDS - 1), 1)}
    numbers = torch.tensor([known.get(word, 0) for word in words]).unfold(0, CONTEXT + 1, 1)
    return TensorDataset(numbers[:, :-1], numbers[:, -1])


def main() -> None:
    """Trains for an epoch."""
    torch.manual_seed(0)
    loader = DataLoader(windows(), batch_size=64, shuffle=True)
    model = nn.Sequential(
        nn.Embedding(MOST_WORDS, 32), nn.Flatten(), nn.Linear(32 * CONTEXT, 128), nn.ReLU(), nn.Linear(128, MOST_WORDS)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 100, len(loader))
    for context, following in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(context), following).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()


if __name__ == "__main__":
    main()
