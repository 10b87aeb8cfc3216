"""A step of a burst is the step that a person would write."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import default_collate

from autotune.bursts.jobs.feed import Feed
from autotune.bursts.jobs.trainer import Evaluator, Learner, Trainer
from autotune.training.tuned import Tuned
from autotune.workload.workload import Workload
from tests.workloads import mistakes


def test_a_step_is_that_of_a_plain_loop() -> None:
    """Accumulation, clipping and the optimizer: the weights are those of the same steps written by hand."""
    weights = []
    features = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
    dataset = torch.utils.data.TensorDataset(features, torch.arange(24) % 2)

    def make() -> Workload:
        torch.manual_seed(0)
        return mistakes.workload(
            dataset=dataset, sampler=range(24), batch_size=4, accumulation_steps=3, clip_grad_norm=0.1,
            optimizer=lambda params: torch.optim.SGD(params, lr=1.0),
        )  # fmt: skip

    workload = make()
    tuned = Tuned(workload.baseline_config)
    trainer = Trainer(workload, tuned, Feed(workload, tuned))
    assert [trainer.step(), trainer.step()] == [12, 12]
    weights.append(workload.model.weight.detach())
    workload = make()
    optimizer = workload.make_optimizer()
    for start in (0, 12):
        for first in range(start, start + 12, 4):
            batch = default_collate([dataset[index] for index in range(first, first + 4)])
            (workload.loss(workload.model, batch) / 3).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(workload.model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    weights.append(workload.model.weight.detach())
    torch.testing.assert_close(*weights)


def test_an_optimizer_that_refuses_dense_gradients_can_be_evaluated() -> None:
    """`SparseAdam` makes no state from gradients of zero, so evaluation goes without."""
    model = nn.Sequential(nn.EmbeddingBag(4, 2, sparse=True))
    workload = mistakes.workload(model=model, optimizer=lambda params: torch.optim.SparseAdam(list(params)))
    tuned = Tuned(workload.baseline_config)
    evaluator = Evaluator(workload, tuned, Feed(workload, tuned), Learner(workload, tuned))
    evaluator.close()
    assert model[0].weight.grad is None
