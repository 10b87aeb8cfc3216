"""What a look tells of a loop is true, also where the loop is not the usual one."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.scripts.changes import held_knobs
from autotune.scripts.facts import baseline_of, facts_of, notes_on
from tests.scripts.conftest import SeenIn
from tests.scripts.test_recognition import written

COMPILED = """
model = torch.compile({model}, backend="{backend}")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(data(8192), batch_size=32, shuffle=True):
    step(model, optimizer, x, y)
"""
OWN = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x):
        return self.net(x)
"""
LBFGS = """
x, y = torch.randn(64, 8).double(), torch.randn(64, 3).double()
model = net().double()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)

def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss

for _ in range(20_000):
    optimizer.step(closure)
"""
STEPS_ON_A_BATCH = """
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(data(8192), batch_size=32):
    for _ in range({steps}):
        step(model, optimizer, x, y)
"""
LBFGS_OVER_A_LOADER = """
model = net()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
for x, y in DataLoader(data(8192), batch_size=32):
    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
"""
BY_FORWARD = """
class Layer(nn.Linear):
    def forward(self, x):
        return x @ self.weight.t() + self.bias

model = Layer(8, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(data(8192), batch_size=32):
    optimizer.zero_grad()
    cross_entropy(model.forward(x), y).backward()
    optimizer.step()
"""
EPISODES = """
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for episode in range(20_000):
    chances = [torch.log_softmax(model(torch.randn(8)), 0)[0] for _ in range(10 + 10 * (episode % 4))]
    optimizer.zero_grad()
    (-torch.stack(chances).sum()).backward()
    optimizer.step()
"""
REPLAYED = """
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
seen = torch.randn(1000, 8)
for _ in range(20_000):
    action = model(torch.randn(1, 8)).argmax()
    rows = seen[torch.randint(0, 1000, (32,))]
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()
"""
SPARSE = """
embedding = nn.EmbeddingBag(100, 8, sparse=True)
optimizer = torch.optim.SGD(embedding.parameters(), 0.1)
rows = TensorDataset(torch.randint(0, 100, (8192, 4)), torch.randint(0, 3, (8192,)))
for x, y in DataLoader(rows, batch_size=32):
    optimizer.zero_grad()
    cross_entropy(embedding(x), y).backward()
    optimizer.step()
"""
UNFREEZING = """
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for number, (x, y) in enumerate(DataLoader(data(8192), batch_size=32)):
    model[0].requires_grad_(number > 1)
    step(model, optimizer, x, y)
"""
BY_ITSELF = """
class Stateful(DataLoader):
    def __iter__(self):
        return self._get_iterator()

model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in Stateful(data(8192), batch_size=32):
    step(model, optimizer, x, y)
"""
CHOOSING = """
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = True
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.LazyLinear(3))
model(torch.randn(1, 3, 8, 8))
model = model.to(memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
rows = TensorDataset(torch.randn(2048, 3, 8, 8), torch.randint(0, 3, (2048,)))
for x, y in DataLoader(rows, batch_size=32):
    step(model, optimizer, x, y)
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts write into the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("model", ["net()", "Net()"], ids=["of torch's classes", "of its own"])
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_model_that_the_script_compiles_is_looked_at(
    model: str, backend: str, tmp_path: Path, seen_in: SeenIn
) -> None:
    """By `torch.compile`, which follows hooks, ours too: the script trains as ever."""
    seen = seen_in(written(tmp_path, OWN + COMPILED.format(model=model, backend=backend)))
    assert seen.compiled
    assert [loader.arguments["batch_size"] for loader in seen.loaders] == [32]
    assert held_knobs(seen, batch_is_free=False)["compile_mode"] == "the script compiles its model itself"


def test_an_optimizer_that_computes_gradients_several_times_a_step_is_named(tmp_path: Path, seen_in: SeenIn) -> None:
    """Its backward passes are counted; weights of float64 are no case for autocast."""
    seen = seen_in(written(tmp_path, LBFGS))
    assert (seen.optimizer, seen.updates_itself) == ("LBFGS", True)
    assert "LBFGS computes gradients several times a step" in notes_on(seen)[0]
    assert held_knobs(seen, batch_is_free=False)["precision"] == "the script chooses float64 itself"


@pytest.mark.parametrize(
    "text",
    [*(STEPS_ON_A_BATCH.format(steps=steps) for steps in (2, 4, 8)), LBFGS_OVER_A_LOADER],
    ids=["2 steps", "4 steps", "8 steps", "LBFGS"],
)
def test_a_loader_is_seen_where_each_batch_is_trained_on_several_times(
    text: str, tmp_path: Path, seen_in: SeenIn
) -> None:
    """As in adversarial training: a batch may outlast the steps that are enough."""
    seen = seen_in(written(tmp_path, text))
    assert [loader.arguments["batch_size"] for loader in seen.loaders] == [32]
    assert (seen.accumulation, seen.updates_itself) == (1, False)


def test_a_model_that_is_called_past_the_hooks_is_not_taken_for_compiled(tmp_path: Path, seen_in: SeenIn) -> None:
    """What acts on its calls is left out, and the reason is told."""
    seen = seen_in(written(tmp_path, BY_FORWARD))
    assert not seen.compiled
    held = held_knobs(seen, batch_is_free=False)
    assert {held[name] for name in ("precision", "compile_mode", "checkpointing")} == {
        "the script calls its model past torch's hooks, by forward()"
    }


def test_steps_that_are_episodes_are_not_compared_across_numerics(tmp_path: Path, seen_in: SeenIn) -> None:
    """Who learns worse has shorter episodes, and would seem faster; one state is one sample."""
    seen = seen_in(written(tmp_path, EPISODES))
    assert seen.steps_vary
    assert seen.step_samples == 1
    assert "different amounts of work" in held_knobs(seen, batch_is_free=False)["optimizer_impl"]
    assert any("to 40 calls of models" in note for note in notes_on(seen))


def test_samples_are_those_of_what_is_trained_on(tmp_path: Path, seen_in: SeenIn) -> None:
    """Not of the state by which an action is chosen, though that computes gradients too."""
    assert seen_in(written(tmp_path, REPLAYED)).step_samples == 32


def test_fused_is_not_offered_for_sparse_gradients(tmp_path: Path, seen_in: SeenIn) -> None:
    """Torch's fused forms refuse them."""
    assert seen_in(written(tmp_path, SPARSE)).facts["optimizer_impls"] == ["foreach"]


def test_fused_is_not_offered_where_momentum_begins_later_for_some_weights(tmp_path: Path, seen_in: SeenIn) -> None:
    """Torch's fused SGD fails there; also if they have their gradient by the end of the look."""
    assert seen_in(written(tmp_path, UNFREEZING)).facts["optimizer_impls"] == ["foreach"]


@pytest.mark.parametrize(
    "line", ["", "torch.backends.cudnn.deterministic = True", "torch.use_deterministic_algorithms(True)"]
)
def test_that_results_are_to_be_deterministic_is_seen(line: str, tmp_path: Path, seen_in: SeenIn) -> None:
    """However the script says it; cuDNN is then not asked to search."""
    script = written(tmp_path, f"{line}\n{CHOOSING}")
    assert facts_of(seen_in(script), script).deterministic is bool(line)


def test_what_the_script_has_told_torch_is_its_baseline(tmp_path: Path, seen_in: SeenIn) -> None:
    """It is not offered as a change; on a CPU, what only a GPU knows stays out of it."""
    script = written(tmp_path, CHOOSING)
    seen = seen_in(script)
    assert seen.chosen == {"memory_format": "channels_last", "optimizer_impl": "fused"}
    baseline = facts_of(seen, script).baseline
    assert (baseline.memory_format, baseline.optimizer_impl) == ("channels_last", "fused")
    assert (baseline.cudnn_benchmark, baseline.precision) == (False, "fp32")
    held = held_knobs(seen, batch_is_free=False)
    assert held["memory_format"] == "the script chooses channels_last itself"
    assert not held.keys() & {"cudnn_benchmark", "precision"}
    assert baseline_of(seen).changes_from(baseline) == {}


def test_a_loader_that_iterates_by_itself_is_named(tmp_path: Path, seen_in: SeenIn) -> None:
    """As torchdata's StatefulDataLoader does; the script has a DataLoader, and is not told that it has none."""
    seen = seen_in(written(tmp_path, BY_ITSELF))
    assert seen.loaders == ()
    assert held_knobs(seen, batch_is_free=False)["num_workers"].startswith("Stateful iterates by itself")
    assert "Stateful iterates by itself" in notes_on(seen)[0]
