"""The knobs of training in several processes at once: how they exchange gradients, and what each of them keeps."""

from __future__ import annotations

from collections.abc import Callable

from autotune.hardware import DeviceKind
from autotune.knobs.config import Scalar, TrainConfig
from autotune.knobs.context import Choices, SearchContext, offer
from autotune.knobs.knob import Knob, Rule

WORTH_SHARE = 0.02
"""Nothing is searched if exchanging gradients takes less than this share of a step: hiding all of it would gain less
than the 2 % that a duet detects (`autotune.measuring.pairs`)."""
_BUCKETS = (1, 5, 100)
"""MiB beside torch's 25: small ones start the exchange earlier, a large one exchanges all at once. Li et al. (*PyTorch
Distributed*, VLDB 2020) tried 0 to 50 MB, and found the best among the small or the large depending on the network."""
_STREAMS: frozenset[DeviceKind] = frozenset({"cuda", "rocm"})
_TREE_RANKS = 3
"""The fewest ranks for which a tree differs from a ring: two ranks exchange the same either way."""
_CTAS = (2, 4, 8, 16)
"""Thread blocks for NCCL, each on a multiprocessor that computing then lacks: powers of two in the range that NCCL
itself takes on one machine (2 to 32 channels, depending on the links)."""
_BUFFER_BYTES = (2**20, 2**23, 2**24)
"""Sizes beside NCCL's own 4 MiB, per direction between two ranks: powers of two, as its documentation recommends."""
_BY_ENVIRONMENT = "NCCL reads it when the ranks meet: set the variable of this name, in capitals, before training"
_WITHOUT_WORD = "your own `DistributedDataParallel` is made with it"


def _too_little(context: SearchContext) -> str | None:
    """Why there is nothing to gain from how gradients are exchanged, or None."""
    if context.start.ranks == 1:
        return "a single process trains, and exchanges nothing"
    share = context.facts.communication_fraction
    if share is not None and share < WORTH_SHARE:
        return f"exchanging gradients takes {share:.1%} of a step: there is too little to gain"
    return None


def _strategies(context: SearchContext) -> Choices | str:
    """Searched where a larger batch can use the memory that it saves; otherwise tried only if memory runs out."""
    possible = _when_short(context)
    if isinstance(possible, str) or context.seeks_memory_by("strategy"):
        return possible
    return (
        "splitting the model saves memory, and the batch is fixed: it is tried only if the baseline runs out of memory"
    )


def _when_short(context: SearchContext) -> Choices | str:
    """Whether the model is split among ranks."""
    if context.start.ranks == 1:
        return "a single process trains"
    return Choices(("ddp", "fsdp"), "each rank keeps a part of weights, gradients and states, and gathers the rest")


def _splits(context: SearchContext) -> str | None:
    """Why no config in the search gathers weights, or None."""
    if context.start.strategy != "fsdp" and isinstance(_strategies(context), str):
        return "the model is not split among ranks: there is nothing to gather"
    return None


def _gathers(context: SearchContext) -> Choices | str:
    """The type in which weights are gathered."""
    if (nothing := _splits(context)) is not None:
        return nothing
    if "bf16" not in context.record.precisions:
        return "weights are gathered in the type they compute in, and this device has no instructions for bf16"
    return Choices(("fp32", "bf16"), "where training computes in bf16, weights gathered in bf16 are half the bytes")


def _gathers_at_once(context: SearchContext) -> str | None:
    """Why nothing is gathered beside computing, or None."""
    if context.device not in _STREAMS:
        return "blocks are gathered ahead on separate streams, and this device has none"
    return _splits(context)


def _exchanges(context: SearchContext) -> Choices | str:
    """Whether gradients are exchanged in bf16, if the user allows it."""
    if (nothing := _too_little(context)) is not None:
        return nothing
    if not context.allow_numerics and context.start.exchange_dtype == "fp32":
        return "gradients are rounded to bf16 before they are added up; if that is fine, --allow-numerics searches it"
    return Choices(("fp32", "bf16"), "gradients in bf16 are half as many bytes to exchange")


def exchanges_coarsely(config: TrainConfig) -> bool:
    """Whether ranks exchange rounded values: only ranks that train together can show whether that is sound."""
    return "bf16" in {config.exchange_dtype, config.fsdp_param_dtype}


def _buckets(context: SearchContext) -> Choices | str:
    """Bucket sizes, up to one that holds all gradients."""
    if (nothing := _too_little(context)) is not None:
        return nothing
    own, all_of_it = context.start.ddp_bucket_cap_mb, 4 * context.facts.parameters / 2**20
    sizes = [size for size in _BUCKETS if size < all_of_it or size == 1]
    if all_of_it > 25:  # otherwise torch's own bucket already holds all
        sizes = list(_BUCKETS)
    reason = "smaller buckets are exchanged earlier, beside the backward pass; larger ones cost fewer exchanges"
    return offer((None, *sizes), reason, own=own)


def _lazily(context: SearchContext) -> Choices | str:
    """Whether buckets take memory in the backward pass alone, where memory is wanted."""
    if (nothing := _too_little(context)) is not None:
        return nothing
    if not context.seeks_memory_by("lazy_bucket_allocation"):
        return "buckets that are freed save memory, and the batch is fixed; name it with --only to try it"
    return Choices((False, True), "buckets are allocated as gradients come, while activations are freed")


def _little_for_nccl(context: SearchContext) -> str | None:
    """Why there is nothing to tune in NCCL, or None."""
    if context.device not in _STREAMS:
        return "NCCL exchanges gradients between GPUs only"
    return _too_little(context)


def _algorithms(context: SearchContext) -> Choices | str:
    """How NCCL sums over all ranks."""
    if (nothing := _little_for_nccl(context)) is not None:
        return nothing
    if context.start.ranks < _TREE_RANKS:
        return "for two ranks, a ring and a tree are alike"
    return offer(
        (None, "Ring", "Tree"), "a ring moves most bytes a second, a tree starts sooner", own=context.start.nccl_algo
    )


def _ctas(context: SearchContext) -> Choices | str:
    """How much of the GPU exchanging may take from computing."""
    if (nothing := _little_for_nccl(context)) is not None:
        return nothing
    reason = "NCCL exchanges gradients on multiprocessors that backward needs: fewer for NCCL leave it more"
    return offer((None, *_CTAS), reason, own=context.start.nccl_max_ctas)


def _buffers(context: SearchContext) -> Choices | str:
    """Bytes in flight between two ranks."""
    if (nothing := _little_for_nccl(context)) is not None:
        return nothing
    reason = "larger buffers keep slow links busy and take memory, smaller ones stay in the cache"
    return offer((None, *_BUFFER_BYTES), reason, own=context.start.nccl_buffsize)


def _static(context: SearchContext) -> Choices | str:
    """Whether DDP may rely on each step using the same parameters."""
    if (nothing := _too_little(context)) is not None:
        return nothing
    if not context.facts.fixed_shapes and "static_graph" not in context.requested:
        return "shapes vary from batch to batch, and what a step uses may vary with them; name it with --only if not"
    return Choices((False, True), "DDP learns from the first step which gradients come when, and looks no more")


def _unless(why_not: Callable[[SearchContext], str | None], values: tuple[Scalar, ...], reason: str) -> Rule:
    """The same values for every workload, where nothing speaks against the knob."""
    return lambda context: why_not(context) or Choices(values, reason)


KNOBS = (
    Knob(
        name="ranks", scope="process", when="as many as your command starts",
        why="processes that train together: each its own micro-batches, all the same weights",
        candidates=None, goes_with="accumulation_steps",  # with the batch size, they make up the effective batch
        affects={"memory", "host memory"},  # on the CPU, of all ranks
        words={"lightning": ("devices",), "fabric": ("devices",)},
        without_word="`torchrun --nproc-per-node` starts as many",
    ),
    Knob(
        name="strategy", scope="process",
        when="several ranks, with `--effective-batch free` or where the baseline does not fit",
        why="ranks that each keep a part of weights, gradients and states have room for larger batches, or models",
        candidates=_strategies, when_short=_when_short, goes_with="ranks", priority={"gpu": 117, "cpu": 87}, guide=141,
        affects={"memory", "host memory", "compiled code"},
        without_word="split by the framework's own FSDP, which is not the one that was measured",
    ),
    Knob(
        name="reshard_after_forward", scope="process", when="the model is split among ranks",
        why="weights that stay gathered between forward and backward save one exchange",
        candidates=_unless(_splits, (True, False),
                           "weights that stay gathered until backward save one exchange, and take memory"),
        goes_with="strategy", priority={"gpu": 119, "cpu": 89}, guide=143,
        affects={"memory", "host memory"}, without_word="an argument of the framework's own FSDP",
    ),
    Knob(
        name="fsdp_param_dtype", scope="process", when="the model is split among ranks, and computes in bf16",
        why="where training computes in bf16, weights that are cast before they are gathered are half the bytes",
        candidates=_gathers, goes_with="strategy", prefers=("bf16",), priority={"gpu": 118, "cpu": 88}, guide=142,
        affects={"memory", "host memory", "arithmetic", "compiled code"},
        without_word="the mixed precision of the framework's own FSDP",
    ),
    Knob(
        name="fsdp_prefetch", scope="process", when="the model is split among ranks",
        why="blocks that are gathered ahead are ready when their turn comes (untested: it needs GPUs)",
        candidates=_unless(_gathers_at_once, (0, 1, 2),
                           "blocks that are gathered ahead are ready when their turn comes, and take memory"),
        goes_with="strategy", priority={"gpu": 121}, guide=147, scale="linear",
        devices=_STREAMS, affects={"memory"}, without_word="an argument of the framework's own FSDP",
    ),
    Knob(
        name="fsdp_own_group", scope="process", when="the model is split among ranks, from torch 2.13 on",
        why="gradients are exchanged while weights are gathered (untested: it needs several GPUs)",
        candidates=_unless(_gathers_at_once, (False, True),
                           "gradients are exchanged while weights are gathered, rather than after them"),
        goes_with="strategy", priority={"gpu": 133}, guide=153, devices=_STREAMS, since=(2, 13),
        affects={"memory"}, without_word="a method of the framework's own FSDP model",
    ),
    Knob(
        name="fsdp_keep_storage", scope="process", when="the model is split among ranks, from torch 2.15 on",
        why="gathered weights keep their place in memory, as CUDA graphs need it (untested: it needs several GPUs)",
        candidates=_unless(_gathers_at_once, (False, True),
                           "weights stay at one place, which CUDA graphs need, and take memory"),
        goes_with="strategy", priority={"gpu": 131}, guide=154, devices=_STREAMS, since=(2, 15),
        affects={"memory"}, without_word="a method of the framework's own FSDP model",
    ),
    Knob(
        name="exchange_dtype", scope="process", needs_allow_numerics=True,
        when="several ranks that exchange a lot, only with `--allow-numerics`",
        why="gradients that are cast to bf16 before they are exchanged are half as many bytes",
        candidates=_exchanges, goes_with="ranks", priority={"gpu": 113, "cpu": 83}, guide=145,
        affects={"memory", "arithmetic"},
        without_word="register torch's `bf16_compress_hook` on the model that it wraps",
    ),
    Knob(
        name="ddp_bucket_cap_mb", scope="process", when="several ranks that exchange a lot",
        why="smaller buckets are exchanged beside the backward pass, larger ones in fewer exchanges",
        candidates=_buckets, goes_with="ranks", priority={"gpu": 114, "cpu": 84}, guide=146, scale="logarithmic",
        affects={"memory", "compiled code"},  # a bucket's end is a graph break
        ddp_argument="bucket_cap_mb",
        words={"lightning": ("strategy",), "fabric": ("strategy",), "transformers": ("ddp_bucket_cap_mb",),
               "accelerate": ("kwargs_handlers",)},
        without_word=_WITHOUT_WORD,
    ),
    Knob(
        name="gradient_as_bucket_view", scope="process", when="several ranks that exchange a lot",
        why="gradients that lie in DDP's buckets are not copied back, and take memory once instead of twice",
        candidates=_unless(_too_little, (False, True),
                           "gradients that lie in the buckets are not copied back, and take memory once"),
        goes_with="ranks", prefers=(True,), priority={"gpu": 112, "cpu": 82}, guide=144,
        affects={"memory"}, ddp_argument="gradient_as_bucket_view",
        words={"lightning": ("strategy",), "fabric": ("strategy",), "accelerate": ("kwargs_handlers",)},
        without_word=_WITHOUT_WORD,
    ),
    Knob(
        name="batched_grad_copy", scope="process", when="several ranks that exchange a lot, from torch 2.13 on",
        why="a bucket of many small gradients is filled by two kernels, rather than two for each",
        candidates=_unless(_too_little, (False, True),
                           "a bucket is filled by two kernels, rather than two for each weight"),
        goes_with="ranks", prefers=(True,), priority={"gpu": 115, "cpu": 85}, guide=152,
        ddp_argument="batched_grad_copy", since=(2, 13),
        words={"lightning": ("strategy",), "fabric": ("strategy",)},
        without_word=_WITHOUT_WORD,
    ),
    Knob(
        name="lazy_bucket_allocation", scope="process",
        when="several ranks that exchange a lot, where memory is wanted, from torch 2.15 on",
        why="buckets that exist in the backward pass only leave memory to activations",
        candidates=_lazily, goes_with="ranks", priority={"gpu": 132, "cpu": 97}, guide=155, affects={"memory"},
        ddp_argument="lazy_bucket_allocation", since=(2, 15),
        words={"lightning": ("strategy",), "fabric": ("strategy",)},
        without_word=_WITHOUT_WORD,
    ),
    Knob(
        name="static_graph", scope="process", when="several ranks that exchange a lot, and shapes are fixed",
        why="DDP learns from the first step which gradients come when, and looks for unused parameters no more",
        candidates=_static, goes_with="ranks", priority={"gpu": 116, "cpu": 86}, guide=148,
        ddp_argument="static_graph",
        words={"lightning": ("strategy",), "fabric": ("strategy",), "transformers": ("ddp_static_graph",),
               "accelerate": ("kwargs_handlers",)},
        without_word=_WITHOUT_WORD,
    ),
    Knob(
        name="nccl_max_ctas", scope="process", when="several ranks that exchange a lot",
        why="exchanging takes fewer multiprocessors from computing (untested: it needs several GPUs)",
        candidates=_ctas, goes_with="ranks", priority={"gpu": 122}, guide=149, scale="logarithmic", devices=_STREAMS,
        variable="NCCL_MAX_CTAS", without_word=_BY_ENVIRONMENT,
    ),
    Knob(
        name="nccl_algo", scope="process", when="three ranks or more that exchange a lot",
        why="a ring or a tree, where NCCL has guessed wrong (untested: it needs several GPUs)",
        candidates=_algorithms, goes_with="ranks", priority={"gpu": 123}, guide=150, devices=_STREAMS,
        variable="NCCL_ALGO", without_word=_BY_ENVIRONMENT,
    ),
    Knob(
        name="nccl_buffsize", scope="process", when="several ranks that exchange a lot",
        why="larger buffers keep slow links busy (untested: it needs several GPUs)",
        candidates=_buffers, goes_with="ranks", priority={"gpu": 124}, guide=151, scale="logarithmic", devices=_STREAMS,
        affects={"memory"}, variable="NCCL_BUFFSIZE", without_word=_BY_ENVIRONMENT,
    ),
    Knob(
        name="find_unused_parameters", scope="process", when="on where the check sees parameters without a gradient",
        why="without it DDP waits for gradients that never come; with it each step looks for them",
        candidates=None, goes_with="ranks", ddp_argument="find_unused_parameters",
        words={"lightning": ("strategy",), "fabric": ("strategy",), "transformers": ("ddp_find_unused_parameters",),
               "accelerate": ("kwargs_handlers",)},
        without_word=_WITHOUT_WORD,
    ),
)  # fmt: skip
