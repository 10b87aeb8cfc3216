"""The workloads of the five guides: the guides' own numbers, files that are really read, and models that learn."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import math
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune import TrainConfig, Workload
from autotune.workload.target import check_signature
from benchmarks import guides
from benchmarks.guides import GUIDES, asl_transformer, cnn_lstm, ctc_tips, lm_pretrain
from benchmarks.plain import Loop

EVERY_GUIDE = pytest.mark.parametrize("name", GUIDES)
VARIABLE_LENGTHS = pytest.mark.parametrize("name", ["asl_transformer", "ctc_tips"])
SMALL: dict[str, dict[str, int]] = {
    "cnn_lstm": {"clips": 64},
    "asl_transformer": {"sequences": 64},
    "landmarks_finetune": {"photos": 24},
    "ctc_tips": {"lines": 64},
    "lm_pretrain": {"text_bytes": 60_000},
}
NUMBERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cnn_lstm": (
        {"batch_size": 256, "accumulation_steps": 1, "precision": "fp32", "num_workers": 4, "pin_memory": True},
        {"batch_size": 256, "accumulation_steps": 1, "precision": "fp16", "num_workers": 8, "cudnn_benchmark": True},
    ),
    "asl_transformer": (
        {"batch_size": 12, "accumulation_steps": 4, "precision": "fp32"},
        {"batch_size": 12, "accumulation_steps": 4, "precision": "fp16", "compile_mode": "reduce-overhead"},
    ),
    "landmarks_finetune": (
        {"num_workers": 4, "prefetch_factor": 2, "precision": "fp32"},
        {"batch_size": 6, "num_workers": 6, "prefetch_factor": 4, "memory_format": "channels_last"},
    ),
    "ctc_tips": (
        {"num_workers": 0, "precision": "fp32", "optimizer_impl": "default"},
        {"pin_memory": True, "non_blocking": True, "optimizer_impl": "fused", "cudnn_benchmark": False},
    ),
    "lm_pretrain": (
        {"batch_size": 12, "accumulation_steps": 10, "num_workers": 0, "precision": "fp32"},
        {"batch_size": 32, "accumulation_steps": 4, "num_workers": 8, "prefetch_factor": 4, "precision": "fp16"},
    ),
}


@pytest.fixture(autouse=True, scope="module")
def _few_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Few files, in a folder of the tests' own."""
    folder = tmp_path_factory.mktemp("guides")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guides, "FOLDER", folder)
        for name, fewer in SMALL.items():
            sizes = module_of(name).SIZES
            patch.setitem(sizes, "cpu", sizes["cpu"]._replace(**fewer))
        yield


@pytest.fixture(autouse=True)
def _alike_each_time() -> Iterator[None]:
    """The same weights and the same augmentation; one thread, since several wait long for each other on a busy CPU."""
    torch.manual_seed(0)
    random.seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def module_of(name: str) -> Any:
    """The module of a guide."""
    return importlib.import_module(f"benchmarks.guides.{name}")


def build(name: str, **arguments: Any) -> Workload:
    """A guide's workload, small enough for two cores on any machine."""
    workload: Workload = module_of(name).build(scale="cpu", **arguments)
    return workload


def batch_of(workload: Workload, indices: list[int]) -> Any:
    """A batch of these samples."""
    dataset: Any = workload.dataset
    collate = workload.collate_fn or torch.utils.data.default_collate
    return collate([dataset[index] for index in indices])


def test_each_module_is_a_guide() -> None:
    """None is forgotten in the list, and none is in it that does not exist."""
    found = {path.stem for path in Path(guides.__file__).parent.glob("*.py") if "def build(" in path.read_text()}
    assert found == set(GUIDES) == set(SMALL) == set(NUMBERS)


@EVERY_GUIDE
def test_configs_have_the_guides_numbers(name: str) -> None:
    """What its reader trains with, and what it advises."""
    module = module_of(name)
    before, advised = NUMBERS[name]
    assert before.items() <= module.BEFORE.model_dump().items()
    assert advised.items() <= module.GUIDE.model_dump().items()
    assert build(name).baseline_config == module.BEFORE


@EVERY_GUIDE
def test_variants_can_be_built(name: str) -> None:
    """Each is a config, and the arguments that some come with are taken by `build`."""
    module = module_of(name)
    assert all(isinstance(config, TrainConfig) for config in module.VARIANTS.values())
    assert module.VARIANT_PARAMETERS.keys() <= module.VARIANTS.keys()
    for parameters in module.VARIANT_PARAMETERS.values():
        check_signature(module.build, name, {argument: (value,) for argument, value in parameters.items()})
        assert isinstance(build(name, **parameters), Workload)


def test_effective_batches_are_what_the_guides_say() -> None:
    """Held by most; where a guide changes it, so does its config."""
    effective = {
        name: (module_of(name).BEFORE.effective_batch, module_of(name).GUIDE.effective_batch) for name in GUIDES
    }
    assert effective == {
        "cnn_lstm": (256, 256), "asl_transformer": (48, 48), "landmarks_finetune": (6, 6), "ctc_tips": (16, 16),
        "lm_pretrain": (120, 128),
    }  # fmt: skip
    assert {config.effective_batch for config in asl_transformer.VARIANTS.values()} == {48}


@EVERY_GUIDE
def test_it_trains_as_the_guides_reader_does(name: str) -> None:
    """Two optimizer steps of the guide's batch, with a worker where there are some: a finite loss, and new weights."""
    workload = build(name)
    config = workload.baseline_config
    loop = Loop(workload, config.replace(num_workers=min(config.num_workers, 1), pin_memory=False), "cpu")
    before = [parameter.detach().clone() for parameter in workload.model.parameters()]
    steps = loop.steps()
    for _ in range(2):
        next(steps)
        assert math.isfinite(float(loop.last_loss))
    assert any(not torch.equal(*pair) for pair in zip(before, workload.model.parameters(), strict=True))


@pytest.mark.slow
@EVERY_GUIDE
def test_the_loss_falls(name: str) -> None:
    """On a few augmented samples, with a learning rate for a short training."""
    easier = {"cnn_lstm": {"mixup_prob": 0.0}, "asl_transformer": {"max_len": 48}}
    workload = build(name, **easier.get(name, {}))
    fast = dataclasses.replace(workload, optimizer=lambda params: torch.optim.Adam(params, lr=1e-3), baseline=None)
    loop = Loop(fast, TrainConfig(batch_size=8), "cpu")
    losses = [float(loop.last_loss) for _, _ in zip(range(40), loop.steps(), strict=False)]
    assert sum(losses[-8:]) / 8 < 0.9 * losses[0], losses


@EVERY_GUIDE
def test_samples_are_read_from_files(name: str, tmp_path: Path) -> None:
    """Without its folder there is no sample: nothing was kept in memory."""
    elsewhere: Any = copy.copy(build(name).dataset)
    elsewhere.folder = tmp_path
    with pytest.raises(FileNotFoundError):
        elsewhere[0]


@pytest.mark.parametrize("name", [name for name in GUIDES if name != "lm_pretrain"])
def test_each_access_augments(name: str) -> None:
    """Of the same file, several accesses make different samples."""
    dataset: Any = build(name).dataset
    accesses = [dataset[3] for _ in range(3)]
    features = [one["features"] if isinstance(one, dict) else one[0] for one in accesses]
    assert len({one.numpy().tobytes() for one in features}) == 3
    assert all(torch.isfinite(one).all() for one in features)


@EVERY_GUIDE
def test_spawned_workers_can_have_it(name: str) -> None:
    """What goes to a worker can be pickled."""
    workload = build(name)
    dataset, collate = pickle.loads(pickle.dumps((workload.dataset, workload.collate_fn)))  # noqa: S301
    assert len(dataset) == len(workload.dataset)  # type: ignore[arg-type]
    assert collate is workload.collate_fn
    assert dataset[0] is not None


@VARIABLE_LENGTHS
def test_batches_are_as_long_as_their_longest_sample(name: str) -> None:
    """Lengths vary a lot, `sample_size` tells which sample is large, and a batch is padded to it."""
    workload = build(name)
    dataset: Any = workload.dataset
    assert workload.sample_size is not None
    sizes = [workload.sample_size(dataset[index]) for index in range(len(dataset))]
    order = sorted(range(len(dataset)), key=lambda index: sizes[index])
    assert sizes[order[-1]] > 3 * sizes[order[len(order) // 2]] / 2
    lengths = []
    for indices in (order[:4], order[-4:]):
        batch = batch_of(workload, indices)
        lengths.append(batch["features"].shape[1] if isinstance(batch, dict) else batch.images.shape[3])
    assert lengths[0] < lengths[1] / 2


def test_auto_is_the_guides_own_size_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere it is what two cores can do; what is asked for by name is what one gets."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [guides.chosen_scale(scale) for scale in ("auto", "cpu", "full")] == ["full", "cpu", "full"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert guides.chosen_scale("auto") == "cpu"
    with pytest.raises(ValueError, match="auto, cpu or full"):
        guides.chosen_scale("large")  # type: ignore[arg-type]


def test_files_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time they are there; a writer that fails leaves nothing behind."""
    monkeypatch.setattr(guides, "FOLDER", tmp_path)

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        guides.written_once("files", fail)
    assert list(tmp_path.iterdir()) == []
    folder = guides.written_once("files", lambda folder: (folder / "all").touch())
    assert guides.written_once("files", fail) == folder
    assert [path.name for path in folder.iterdir()] == ["all"]


def test_files_of_another_process_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes may write at the same time: the first to be done has written them."""
    monkeypatch.setattr(guides, "FOLDER", tmp_path)

    def overtaken(folder: Path) -> None:
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / "theirs").touch()
        (folder / "ours").touch()

    folder = guides.written_once("files", overtaken)
    assert [path.name for path in folder.iterdir()] == ["theirs"]
    assert list(tmp_path.iterdir()) == [folder]


def test_mixup_mixes_so_many_batches() -> None:
    """Without it, the network sees what was loaded; with it, sums of that."""
    seen: list[torch.Tensor] = []

    def watch(_: Any, arguments: tuple[torch.Tensor]) -> None:
        seen.append(arguments[0].detach())

    for probability in (0.0, 1.0):
        workload = build("cnn_lstm", mixup_prob=probability)
        workload.model.register_forward_pre_hook(watch)
        features, words = batch_of(workload, list(range(8)))
        assert workload.loss(workload.model, (features, words)).isfinite()
        assert torch.equal(seen[-1], features) == (probability == 0)
        assert seen[-1].shape == features.shape


def test_a_frozen_cnn_is_not_trained() -> None:
    """Its parameters do not reach the optimizer."""
    frozen, trained = (build("cnn_lstm", freeze_cnn=freeze) for freeze in (True, False))
    in_optimizer = [sum(len(g["params"]) for g in one.make_optimizer().param_groups) for one in (frozen, trained)]
    cnn = len(list(trained.model.get_submodule("cnn").parameters()))
    assert in_optimizer[0] == in_optimizer[1] - cnn > 0


def test_padding_changes_no_score() -> None:
    """Signs are recognised alike, alone or beside a longer one: padded frames are masked everywhere."""
    workload = build("asl_transformer")
    model = workload.model.eval()
    dataset: Any = workload.dataset
    samples = sorted((dataset[index] for index in range(8)), key=asl_transformer.sequence_length)
    alone, together = (asl_transformer.collate(chosen) for chosen in (samples[:1], samples))
    assert not together["mask"].all()
    with torch.no_grad():
        scores = [model(batch["features"], batch["mask"])[0] for batch in (alone, together)]
    torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-4)


def test_sequences_are_cut_at_max_len() -> None:
    """Also after they were slowed down; the model has as many positions."""
    workload = build("asl_transformer", max_len=20)
    dataset: Any = workload.dataset
    lengths = {asl_transformer.sequence_length(dataset[index]) for index in range(len(dataset))}
    assert max(lengths) == 20
    assert workload.model.get_parameter("positions.weight").shape[0] == 20


@pytest.mark.parametrize("width", [61, 62, 63, 64, 200])
def test_frames_are_counted_as_the_network_makes_them(width: int) -> None:
    """CTC is told how many frames of a batch are a line's own."""
    workload = build("ctc_tips")
    assert len(workload.model(torch.zeros(1, 1, 32, width))) == ctc_tips.frames_of(width)


def test_ctc_is_computed_in_full_precision() -> None:
    """Also where the network computes in half precision; to watch the loss does not change it."""
    quiet, watched = build("ctc_tips"), build("ctc_tips", watch_loss=True)
    batch = batch_of(quiet, [0, 1, 2])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [workload.loss(quiet.model, batch) for workload in (quiet, watched)]
    assert losses[0].dtype == torch.float32
    torch.testing.assert_close(*losses)


def test_no_line_is_too_long_for_ctc() -> None:
    """Even a line of equal digits, each of which needs a blank before the next, has frames enough."""
    dataset: Any = build("ctc_tips").dataset
    for index in range(len(dataset)):
        image, digits = dataset[index]
        assert ctc_tips.frames_of(image.shape[2]) >= 2 * len(digits) - 1


def test_tokens_are_the_text() -> None:
    """Merged tokens stand for the bytes that they were merged from, are short, and save room."""
    workload = build("lm_pretrain")
    dataset: Any = workload.dataset
    spelt = [bytes([byte]) for byte in range(lm_pretrain.BYTES)]
    for left, right in dataset.merges:
        spelt.append(spelt[left] + spelt[right])
    text = (dataset.folder / "text").read_bytes()[:5000]
    tokens = lm_pretrain.encode(text, dataset.merges)
    assert b"".join(spelt[token] for token in tokens) == text
    assert max(len(token) for token in spelt) == lm_pretrain.MOST_TOKEN_BYTES
    assert len(tokens) < 0.7 * len(text)


@pytest.mark.parametrize(
    ("text", "pair", "merged"), [(b"aaaa", b"aa", [9, 9]), (b"aaaba", b"aa", [9, 97, 98, 97]), (b"abab", b"ab", [9, 9])]
)
def test_merged_pairs_do_not_overlap(text: bytes, pair: bytes, merged: list[int]) -> None:
    """Of three alike, the first two become one."""
    assert lm_pretrain.merge(lm_pretrain.as_tokens(text), *pair, 9).tolist() == merged


def test_each_window_is_full() -> None:
    """However well its text is compressed, its targets are its tokens, one further."""
    workload = build("lm_pretrain")
    dataset: Any = workload.dataset
    for index in (0, len(dataset) // 2, len(dataset) - 1):
        tokens, following = dataset[index]
        assert tokens.shape == following.shape == (lm_pretrain.SIZES["cpu"].context,)
        assert torch.equal(tokens[1:], following[:-1])


def test_the_language_model_does_not_look_ahead() -> None:
    """A later token changes no earlier score: else it would learn to copy."""
    model = build("lm_pretrain").model.eval()
    tokens = torch.randint(0, 512, (1, 64))
    changed = tokens.clone()
    changed[0, 40] = (changed[0, 40] + 1) % 512
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, 40:], after[:, 40:])


def test_words_differ_in_what_is_heard() -> None:
    """The features of two clips of a word are more alike than those of clips of different words."""
    workload = build("cnn_lstm")
    dataset: Any = workload.dataset
    features = torch.stack([dataset[index][0].flatten() for index in range(len(dataset))])
    words = torch.tensor(dataset.words)
    alike = torch.corrcoef(features)
    same = (words[:, None] == words) & ~torch.eye(len(words), dtype=torch.bool)
    assert features.shape[1] == cnn_lstm.SIZES["cpu"].bands * 32
    assert alike[same].mean() > alike[words[:, None] != words].mean()
