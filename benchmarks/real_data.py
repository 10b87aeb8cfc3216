"""Data for scripts that nobody here wrote, in the formats that they want; what they hold is made up."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

DIGITS, TEST_DIGITS = 60_000, 10_000
WORDS, VOCABULARY = 200_000, 2_000
_REQUESTS = '''"""Stands in for the network: the one file that is asked for lies beside this one."""


class get:
    def __init__(self, url, stream):
        self.raw = open(__file__.replace("requests.py", "cora.tgz"), "rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.raw.close()
'''
_GLUE = '''"""Accuracy of pairs, in the place of the metric that would be downloaded."""

import datasets
import evaluate


class Glue(evaluate.Metric):
    def _info(self):
        numbers = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=numbers)

    def _compute(self, predictions, references):
        return {"accuracy": sum(one == other for one, other in zip(predictions, references)) / len(references)}
'''


def digits(*roots: Path) -> None:
    """MNIST's files: idx of unsigned bytes, under ``MNIST/raw`` of each root."""
    rng = np.random.default_rng(0)
    for root in roots:
        folder = root / "MNIST" / "raw"
        folder.mkdir(parents=True, exist_ok=True)
        for name, count in (("train", DIGITS), ("t10k", TEST_DIGITS)):
            labels = rng.integers(0, 10, count, dtype=np.uint8)
            images = rng.integers(0, 60, (count, 28, 28), dtype=np.uint8)
            for place in range(10):  # something to learn: a bright bar whose height is the digit
                images[labels == place, 2 * place + 4 : 2 * place + 7, 6:22] += 150
            _idx(folder / f"{name}-images-idx3-ubyte", images)
            _idx(folder / f"{name}-labels-idx1-ubyte", labels)


def _idx(path: Path, values: np.ndarray) -> None:
    header = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    path.write_bytes(header + values.tobytes())


def words(path: Path, count: int = WORDS) -> None:
    """A text whose words are as frequent as in a language, by Zipf's law."""
    rng = random.Random(0)
    vocabulary = ["".join(rng.choices("aeioubdfgklmnprst", k=rng.randint(2, 9))) for _ in range(VOCABULARY)]
    weights = [1 / rank for rank in range(1, VOCABULARY + 1)]
    drawn = rng.choices(vocabulary, weights, k=count)
    lines = [" ".join(drawn[place : place + 12]) for place in range(0, count, 12)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def wikitext(folder: Path) -> None:
    """Three texts, as WikiText-2 has them."""
    for name, count in (("train", WORDS), ("valid", WORDS // 20), ("test", WORDS // 20)):
        words(folder / f"{name}.txt", count)


def photos(folder: Path, count: int, size: tuple[int, int] = (320, 240)) -> None:
    """JPEG files of noise in large patches."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        patches = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(patches).resize(size, Image.Resampling.BICUBIC).save(folder / f"{number}.jpg", quality=90)


def classes(folder: Path, count: int = 4, each: int = 150) -> None:
    """Folders of photos, one a class, for training and for validation."""
    for kind in range(count):
        photos(folder / "train" / f"class{kind}", each)
        photos(folder / "validation" / f"class{kind}", each // 10)


def bsds300(folder: Path) -> None:
    """The photos of the super-resolution example."""
    photos(folder / "dataset" / "BSDS300" / "images" / "train", 200, (481, 321))
    photos(folder / "dataset" / "BSDS300" / "images" / "test", 20, (481, 321))


def cora(folder: Path, papers: int = 2_708, features: int = 1_433, citations: int = 5_429) -> None:
    """A graph of Cora's size, and a module that hands it over where the script would download it."""
    rng = np.random.default_rng(0)
    lines = []
    for paper in range(papers):
        has = rng.random(features) < 0.0127
        has[paper % features] = True
        lines.append("\t".join([str(paper), *("1" if one else "0" for one in has), f"topic{paper % 7}"]))
    ends = rng.choice(papers * papers, citations, replace=False)
    cites = [f"{end // papers}\t{end % papers}" for end in ends]
    with tarfile.open(folder / "cora.tgz", "w:gz") as archive:
        for name, content in (("cora.content", lines), ("cora.cites", cites)):
            data = ("\n".join(content) + "\n").encode()
            entry = tarfile.TarInfo(f"cora/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    (folder / "requests.py").write_text(_REQUESTS, encoding="utf-8")


def tokenizer(folder: Path, text: Path) -> None:
    """A tokenizer of a text, as transformers load it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE(unk_token="[UNK]"))  # noqa: S106 - a word
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train([str(text)], trainers.BpeTrainer(vocab_size=2_000, special_tokens=special))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=made, mask_token="[MASK]", eos_token="[SEP]", **names).save_pretrained(  # noqa: S106
        folder
    )


def language_model(folder: Path) -> None:
    """A text and its tokenizer."""
    words(folder / "text.txt")
    tokenizer(folder / "tokenizer", folder / "text.txt")


def paraphrases(folder: Path, pairs: int = 60_000) -> None:
    """What Accelerate's example asks the hub for: a small BERT, pairs of sentences, and a metric."""
    from transformers import BertConfig, BertForSequenceClassification

    words(folder / "text.txt")
    tokenizer(folder / "bert-base-cased", folder / "text.txt")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=2_000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512
    )
    BertForSequenceClassification(config).save_pretrained(folder / "bert-base-cased")
    lines = (folder / "text.txt").read_text(encoding="utf-8").splitlines()
    rng = random.Random(0)
    glue = folder / "nyu-mll" / "glue"
    glue.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", pairs), ("validation", pairs // 20), ("test", pairs // 20)):
        rows = []
        for index in range(count):
            first, second = rng.choice(lines), rng.choice(lines)
            label = index % 2
            rows.append({"sentence1": first, "sentence2": first if label else second, "label": label, "idx": index})
        (glue / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    splits = "".join(f"  - split: {name}\n    path: {name}.jsonl\n" for name in ("train", "validation", "test"))
    (glue / "README.md").write_text(
        f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{splits}---\n", encoding="utf-8"
    )
    (folder / "glue").mkdir(exist_ok=True)
    (folder / "glue" / "glue.py").write_text(_GLUE, encoding="utf-8")
