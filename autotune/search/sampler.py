"""The search's chooser as an Optuna sampler: draws the point with the best expected gain per second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from optuna.samplers import BaseSampler, RandomSampler

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from autotune.search.proposal import Proposal

FIXED = "fixed_params"
"""The name under which Optuna stores the parameters of an enqueued trial."""


class BayesSampler(BaseSampler):
    """Draws the proposals of a `choice.Chooser`; draws at random without one, and for parameters that it leaves open.

    Args:
        seed: The seed of random draws.
    """

    def __init__(self, seed: int) -> None:
        self._random = RandomSampler(seed)
        self._propose: Callable[[], Proposal | None] = lambda: None
        self._parameters: Callable[[Proposal], Mapping[str, Any]] = lambda _: {}
        self._distributions: Mapping[str, BaseDistribution] = {}

    def follow(
        self,
        propose: Callable[[], Proposal | None],
        parameters: Callable[[Proposal], Mapping[str, Any] | None],
        distributions: Mapping[str, BaseDistribution],
    ) -> None:
        """Draws the proposals of `propose` from now on.

        Args:
            propose: Returns the next proposal; None if there is none.
            parameters: Returns the study's parameters for a proposal; None if it lies outside.
            distributions: The distributions of all parameters.
        """
        self._propose = propose
        self._parameters = lambda proposal: parameters(proposal) or {}
        self._distributions = distributions

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002 - Optuna's interface
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """The whole search space: proposals are whole configs."""
        return dict(self._distributions)

    def sample_relative(
        self,
        study: optuna.Study,  # noqa: ARG002 - Optuna's interface
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """The parameters of the next proposal; none for a trial with given parameters."""
        if FIXED in trial.system_attrs or (proposal := self._propose()) is None:
            return {}
        return dict(self._parameters(proposal))

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """One parameter at random."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """Draws different numbers from now on, as in another process."""
        self._random.reseed_rng()
