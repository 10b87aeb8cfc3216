"""Training loops that run twice in one process, as they are and tuned while they train; prints what each has learned.

    python -m tests.live.loops CASE …

Blocks are of one step, nothing is too costly, and every second candidate wins, so that a few epochs hold many switches.
"""

import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from functools import partial

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, WeightedRandomSampler, get_worker_info

from autotune.recorder.live import draws, steps, training

SAMPLES, EPOCHS = 160, 4
FORMS = ("fused", "foreach")


class Numbers(Dataset):
    """Samples that know their index; workers of a pool of two fail in one of several ways."""

    def __init__(self, fault=None, samples=SAMPLES):
        generator = torch.Generator().manual_seed(1)
        self.values = torch.randn(samples, 16, generator=generator)
        self.labels = torch.randint(0, 4, (samples,), generator=generator)
        self.fault = fault
        self.level, self.draws = 0, None

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        worker = get_worker_info()
        if index % 4 == 1 and worker is not None and worker.num_workers == 2:
            _fail(self.fault)
        if index == 77 and self.fault == "bad sample":
            raise KeyError("bad sample")
        noise = self.draws.random() if self.draws is not None else 0.0
        return self.values[index] + noise, self.labels[index], index + self.level


def _fail(fault):
    if fault == "raises":
        raise ValueError("in a worker")
    if fault == "exits":
        os._exit(3)
    if fault == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hangs":
        time.sleep(1000)


class Advice:
    """Offers candidates at once, and keeps what it hears."""

    def __init__(self, candidates):
        self.candidates = candidates
        self.events = []

    def ask(self, facts):
        self.facts = facts

    def answer(self):
        return self.candidates

    def tell(self, event, **content):
        self.events.append({"event": event, **content})


class Alternating(training.Evidence):
    """Every second candidate wins, whatever it was measured to do."""

    decided = 0

    @property
    def verdict(self):
        if not self.logs:
            return None
        Alternating.decided += 1
        return "won" if Alternating.decided % 2 else "lost"


ON_MODELS = {
    "precision": "autocast_forward",
    "memory_format": "convolve_channels_last",
    "compile_mode": "compile_calls",
}


def candidate(**knobs):
    """As the parent describes one."""
    loader = {name: knobs[name] for name in ("num_workers", "prefetch_factor") if name in knobs}
    threads, form = knobs.get("num_threads"), knobs.get("optimizer_impl")
    return {
        "name": str(knobs),
        "knobs": knobs,
        "loader": loader,
        "process": {} if threads is None else {"set_threads": threads},
        "optimizer": {} if form is None else {"switch_optimizer": form},
        "model": {function: knob for knob, function in ON_MODELS.items() if knob in knobs},
    }


OF_LOADER = [
    candidate(num_workers=2, prefetch_factor=2), candidate(num_workers=1, prefetch_factor=2),
    candidate(num_workers=0, prefetch_factor=None), candidate(num_workers=2, prefetch_factor=4),
    candidate(num_workers=3, prefetch_factor=1),
]  # fmt: skip
OTHERS = [*(candidate(optimizer_impl=form) for form in FORMS), candidate(num_threads=1)]


LAYOUTS = [candidate(memory_format="channels_last"), candidate(memory_format="channels_last", optimizer_impl="fused")]
PRECISIONS = [candidate(precision="bf16"), candidate(precision="fp32"), candidate(precision="bf16")]


def weighted(data):
    """A sampler that draws from the global generator when its pass begins."""
    return WeightedRandomSampler(torch.rand(len(data), generator=torch.Generator().manual_seed(2)).tolist(), len(data))


LOADERS = {
    "no workers": {"shuffle": True},
    "workers": {"shuffle": True, "num_workers": 2},
    "workers that persist": {"shuffle": True, "num_workers": 2, "persistent_workers": True},
    "own generator": {"shuffle": True, "generator": 7},
    "own generator, workers": {"shuffle": True, "generator": 7, "num_workers": 1},
    "weighted": {"sampler": weighted},
    "replacement": {"sampler": lambda data: RandomSampler(data, replacement=True)},
    "last batch dropped": {"shuffle": True, "drop_last": True, "batch_size": 7},
}
LOOPS = (
    "evaluates",
    "evaluates within epochs",
    "accumulates",
    "leaves epochs early",
    "makes its loader anew",
    "reads two passes",
    "reads in chunks",
    "evaluates with workers that persist",
    "changes its data",
    "draws by itself",
    "has short epochs",
)
EVALUATION = {"evaluates with workers that persist": {"num_workers": 1, "persistent_workers": True}}
FAULTS = ("raises", "exits", "is killed", "hangs", "bad sample")


class Chunks:
    """A loader whose iterator is asked again after its end."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        batches = iter(self.loader)
        while chunk := list(itertools.islice(batches, 3)):
            yield from chunk


class Viewing(nn.Module):
    """A model that views what a convolution returns, for which this must be contiguous."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8))
        self.last = nn.Linear(32, 4)

    def forward(self, values):
        return self.last(self.layers(values).view(len(values), -1))


class Summing(nn.Module):
    """A model that raises in another precision, after it has drawn random numbers and counted in a buffer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 4))

    def forward(self, values):
        return torch.zeros(len(values), 4).index_add_(0, torch.arange(len(values)), self.layers(values))


def make_loader(arguments, data):
    """A loader; a generator is named by its seed, and a sampler is made of the data."""
    arguments = {"batch_size": 4, **arguments}
    if "generator" in arguments:
        arguments["generator"] = torch.Generator().manual_seed(arguments["generator"])
    if "sampler" in arguments:
        arguments["sampler"] = arguments["sampler"](data)
    return DataLoader(data, **arguments)


def make_model(loop):
    """The model of a loop."""
    if loop == "convolutions":
        folded = nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten()
        return nn.Sequential(*folded, nn.Linear(16, 4))
    if loop == "views":
        return Viewing()
    if loop == "needs fp32":
        return Summing()
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))


def load(file, parts):
    """Resumes a training."""
    states = torch.load(file)
    for name, part in parts.items():
        part.load_state_dict(states[name])
    torch.set_rng_state(states["random"])


def save(file, parts):
    """Saves a training."""
    states = {name: part.state_dict() for name, part in parts.items()}
    torch.save({**states, "random": torch.get_rng_state()}, file)


def train(arguments, loop="", fault=None, resumed=None, saved=None):
    """A training by hand, which may resume from a file, and save to one; all that it has learned, and drawn."""
    torch.manual_seed(0)
    data = Numbers(fault, 40 if loop == "has short epochs" else SAMPLES)
    others = DataLoader(Numbers(samples=16), batch_size=8, **EVALUATION.get(loop, {}))
    next(iter(others))  # for the shapes
    data.draws = random.Random(0) if loop == "draws by itself" else None
    model = make_model(loop)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    if resumed is not None:
        load(resumed, parts)
    group, loader = optimizer.param_groups[0], make_loader(arguments, data)
    learned = {"losses": [], "ids": [], "states": [], "errors": []}

    def evaluate():
        model.eval()
        with torch.no_grad():
            learned["losses"].append(sum(model(values).sum().item() for values, _, _ in others))
        model.train()

    for _ in range(EPOCHS):
        if loop == "makes its loader anew":
            loader = make_loader(arguments, data)
        try:
            chunks = Chunks(loader) if loop == "reads in chunks" else loader
            passes = zip(loader, loader, strict=True) if loop == "reads two passes" else zip(chunks, strict=True)
            for number, ((values, labels, ids), *_) in enumerate(passes):
                if loop == "leaves epochs early" and number == 25:
                    break
                loss = nn.functional.cross_entropy(model(values), labels)
                loss.backward()
                learned["losses"].append(loss.item())
                learned["ids"].append(ids.tolist())
                if loop != "accumulates" or number % 4 == 3:
                    optimizer.step()
                    optimizer.zero_grad()
                data.level += loop == "changes its data"
                if loop == "evaluates within epochs" and number % 10 == 9:
                    evaluate()
        except KeyError as error:
            learned["errors"].append(str(error).splitlines()[-1])
        if loop in {"evaluates", *EVALUATION}:
            evaluate()
            with torch.no_grad():
                learned["ids"] += [ids.tolist() for _, _, ids in loader]
        schedule.step()
        learned["states"].append(hash(torch.get_rng_state().numpy().tobytes()))
    if saved is not None:
        save(saved, parts)
    state = optimizer.state_dict()
    learned["checkpoint"] = [
        {name: value for name, value in state["param_groups"][0].items() if name != "params"},
        [[name, str(value.dtype), value.stride()] for name, value in state["state"][0].items()],
    ]
    learned["group is the same"] = optimizer.param_groups[0] is group
    learned["buffers"] = [buffer.tolist() for buffer in model.buffers()]
    return learned


def by_lightning():
    """A Trainer that validates, clips and logs."""
    import lightning

    torch.manual_seed(0)
    learned = {"losses": [], "ids": []}

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))

        def training_step(self, batch, _):
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            learned["losses"].append(loss.item())
            learned["ids"].append(batch[2].tolist())
            return loss

        def validation_step(self, batch, _):
            learned["losses"].append(self.net(batch[0]).sum().item())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", enable_progress_bar=False, logger=False, enable_checkpointing=False,
        enable_model_summary=False, gradient_clip_val=1.0,
    )  # fmt: skip
    trainer.fit(Classifier(), make_loader({"shuffle": True}, Numbers()), make_loader({}, Numbers(samples=16)))
    return learned


def by_accelerate():
    """A loop that accumulates under Accelerate."""
    from accelerate import Accelerator

    torch.manual_seed(0)
    learned = {"losses": [], "ids": []}
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
    made = model, torch.optim.AdamW(model.parameters()), make_loader({"shuffle": True}, Numbers())
    model, optimizer, loader = accelerator.prepare(*made)
    for _ in range(EPOCHS):
        for values, labels, ids in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(values), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            learned["losses"].append(loss.item())
            learned["ids"].append(ids.tolist())
    return learned


def by_transformers():
    """A Trainer of transformers'."""
    from transformers import Trainer, TrainingArguments

    learned = {"losses": [], "ids": []}

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))

        def forward(self, values, labels, ids):
            loss = nn.functional.cross_entropy(self.net(values), labels)
            learned["losses"].append(loss.item())
            learned["ids"].append(ids.tolist())
            return {"loss": loss}

    def collate(samples):
        return {name: torch.stack([torch.as_tensor(one[place]) for one in samples])
                for place, name in enumerate(("values", "labels", "ids"))}  # fmt: skip

    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir="out", num_train_epochs=EPOCHS, per_device_train_batch_size=4, use_cpu=True, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip
    Trainer(Classifier(), arguments, train_dataset=Numbers(), data_collator=collate).train()
    return learned


FRAMEWORKS = {"lightning": by_lightning, "accelerate": by_accelerate, "transformers": by_transformers}


def compare(name, candidates, plainly, tuned=None):
    """Trains as it is and tuned; what is tuned may fail in ways of its own."""
    plain = plainly()
    advice = Advice(candidates)
    live = training.LiveTraining(advice, 2, ["precision"])
    tuned = (tuned or plainly)()
    live.give_up("the case is over")
    decided = [[one["verdict"], one["reason"]] for one in advice.events if one["event"] == "decided"]
    print(json.dumps({"case": name, "plain": plain, "tuned": tuned, "decided": decided, "left": live.left}), flush=True)


def resume(folder):
    """A training that is interrupted halfway: each half as it is, and tuned."""
    for first, second in itertools.product(("plain", "tuned"), repeat=2):
        file = os.path.join(folder, f"{first}, then {second}")
        decided = []
        for way, files in ((first, {"saved": file}), (second, {"resumed": file})):
            advice = Advice([*OTHERS, *OF_LOADER])
            live = training.LiveTraining(advice, 2) if way == "tuned" else None
            learned = train({"shuffle": True}, **files)
            if live is not None:
                live.give_up("the case is over")
                decided.append(sum(one["event"] == "decided" for one in advice.events))
        print(json.dumps({"case": os.path.basename(file), "decided": decided, **learned}), flush=True)


def main(kinds):
    """Runs the cases of these kinds."""
    training.WARM_STEPS = steps.WARM_STEPS = draws.WARM_STEPS = 4
    training.WARM_SECONDS, training.BLOCK_SECONDS = 0.0, 0.0
    training.HANG_SECONDS, training.HANG_STEPS, training.FEWEST_STEPS = 1.5, 1, 2
    training.Ledger.may_lose, training.Ledger.allows = (lambda *_: 1e9), (lambda *_, **__: True)
    training.Evidence = Alternating
    if "loaders" in kinds:
        for name, arguments in LOADERS.items():
            compare(name, OF_LOADER, partial(train, arguments))
    if "loops" in kinds:
        for loop in LOOPS:
            compare(loop, OF_LOADER, partial(train, {"shuffle": True}, loop))
        compare("optimizers", OTHERS, partial(train, {"shuffle": True}))
        compare("layouts", LAYOUTS, partial(train, {"shuffle": True}, "convolutions"))
        compare("views", LAYOUTS, partial(train, {"shuffle": True}, "views"))
        for loop in ("convolutions", "needs fp32"):
            compare(loop, PRECISIONS, partial(train, {"shuffle": True}, loop))
    if "frameworks" in kinds:
        for name, framework in FRAMEWORKS.items():
            compare(name, OF_LOADER, framework)
    if "resumes" in kinds:
        with tempfile.TemporaryDirectory() as folder:
            resume(folder)
    if "faults" in kinds:
        for fault in FAULTS:
            untuned = partial(train, {"shuffle": True}, fault=fault if fault == "bad sample" else None)
            compare(fault, OF_LOADER[:2], untuned, partial(train, {"shuffle": True}, fault=fault))


if __name__ == "__main__":
    main(sys.argv[1:])
