"""Messages along the edges of small graphs, added up by index: batches are one large graph, of another size each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from autotune import Workload

FEATURES, FEWEST, MOST = 16, 8, 60
REACH = 0.3
"""Of the unit square: nodes that are nearer are joined."""


class Graph(NamedTuple):
    """One graph, or several as one.

    Attributes:
        nodes: ``(nodes, FEATURES)``.
        edges: ``(2, edges)``: from, to.
        graph: ``(nodes,)``: to which graph a node belongs.
        label: ``(graphs,)``: edges per node, what is learned.
    """

    nodes: torch.Tensor
    edges: torch.Tensor
    graph: torch.Tensor
    label: torch.Tensor


class Neighbours(Dataset[Graph]):
    """Random points in a square, joined where they are near.

    Args:
        count: Graphs.
    """

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.graphs = []
        for size in torch.randint(FEWEST, MOST, (count,), generator=generator).tolist():
            places = torch.rand(size, 2, generator=generator)
            near = (torch.cdist(places, places) < REACH).fill_diagonal_(False)
            edges = near.nonzero().T.contiguous()
            nodes = torch.randn(size, FEATURES, generator=generator)
            label = torch.tensor([edges.shape[1] / size])
            self.graphs.append(Graph(nodes, edges, torch.zeros(size, dtype=torch.int64), label))

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int) -> Graph:
        return self.graphs[index]


def together(graphs: Sequence[Graph]) -> Graph:
    """All as one graph."""
    sizes = [len(one.nodes) for one in graphs]
    starts = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return Graph(
        torch.cat([one.nodes for one in graphs]),
        torch.cat([one.edges + start for one, start in zip(graphs, starts, strict=False)], dim=1),
        torch.repeat_interleave(torch.arange(len(graphs)), torch.tensor(sizes)),
        torch.cat([one.label for one in graphs]),
    )


class Messages(nn.Module):
    """A graph to ``(graphs,)`` numbers.

    Args:
        width: Of a node's state.
        rounds: Of messages.
    """

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.states = nn.Linear(FEATURES, width)
        self.said = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(rounds))
        self.heard = nn.ModuleList(nn.GRUCell(width, width) for _ in range(rounds))
        self.number = nn.Linear(width, 1)

    def forward(self, batch: Graph) -> torch.Tensor:
        """What each graph is worth."""
        states, (source, goal) = functional.relu(self.states(batch.nodes)), batch.edges.unbind()
        for said, heard in zip(self.said, self.heard, strict=True):
            messages = functional.relu(said(torch.cat([states[source], states[goal]], dim=1)))
            states = heard(torch.zeros_like(states).index_add(0, goal, messages.to(states.dtype)), states)
        sums = states.new_zeros(len(batch.label), states.shape[1]).index_add(0, batch.graph, states)
        number: torch.Tensor = self.number(sums).squeeze(1)
        return number


def loss(model: nn.Module, batch: Graph) -> torch.Tensor:
    """Mean squared error of the edges per node."""
    return functional.mse_loss(model(batch), batch.label)


def nodes_of(sample: Graph) -> int:
    """The size of a graph."""
    return len(sample.nodes)


def build(width: int = 48, rounds: int = 3) -> Workload:
    """The workload as it is trained today."""
    return Workload(
        model=Messages(width, rounds),
        dataset=Neighbours(2000),
        loss=loss,
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-3),
        collate_fn=together,
        batch_size=32,
        sample_size=nodes_of,
        name="graphs",
    )
