"""Real photographs as JPEG files: crops of the two that scikit-learn ships, written once and decoded on every access.

Each carries five round marks at known places, for a network that learns to find them.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from PIL import Image, ImageDraw
from sklearn.datasets import load_sample_images

from benchmarks.guides import written_once

MARKS = 5
MARK_COLOURS = ((230, 40, 40), (40, 200, 60), (50, 80, 230), (240, 220, 40), (200, 60, 220))
MARK_SHARE = 0.035
"""Radius of a mark, as a share of the side."""
JPEG_QUALITY = 90


def photo_folder(count: int, side: int) -> Path:
    """A folder with ``<number>.jpg``, ``side`` × ``side`` pixels each, and ``marks.json``; made if it is not there.

    Args:
        count: How many.
        side: Pixels.
    """
    return written_once(f"photos-{count}-{side}", lambda folder: _write(folder, count, side))


def _write(folder: Path, count: int, side: int) -> None:
    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    rng = random.Random(0)
    marks = []
    for number in range(count):
        photograph = rng.choice(photographs)
        extent = rng.uniform(0.4, 0.95) * min(photograph.size)
        left, top = rng.uniform(0, photograph.width - extent), rng.uniform(0, photograph.height - extent)
        crop = photograph.resize((side, side), box=(left, top, left + extent, top + extent))
        places = [(rng.uniform(0.2, 0.8), rng.uniform(0.2, 0.8)) for _ in range(MARKS)]
        draw = ImageDraw.Draw(crop)
        for (x, y), colour in zip(places, MARK_COLOURS, strict=True):
            draw.circle((x * side, y * side), MARK_SHARE * side, fill=colour)
        crop.save(folder / f"{number}.jpg", quality=JPEG_QUALITY)
        marks.append(places)
    (folder / "marks.json").write_text(json.dumps(marks))
