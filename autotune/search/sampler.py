"""The search's way of choosing as an Optuna sampler: it draws what the model of the trials so far expects most of."""

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
"""Under this name Optuna keeps the parameters of a trial that was enqueued."""


class BayesSampler(BaseSampler):
    """Draws what promises most a second, as `choice.Chooser` says; before it has one, and beside it, at random.

    Args:
        seed: Of what is drawn at random.
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
        """Draws from now on what is proposed.

        Args:
            propose: The next proposal; None when there is none.
            parameters: Of the study, for a proposal; None when it lies outside.
            distributions: What may be drawn.
        """
        self._propose = propose
        self._parameters = lambda proposal: parameters(proposal) or {}
        self._distributions = distributions

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002 - Optuna's interface
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """All that is searched: a proposal is one of whole configs."""
        return dict(self._distributions)

    def sample_relative(
        self,
        study: optuna.Study,  # noqa: ARG002 - Optuna's interface
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """The parameters of the next proposal; none for a trial whose parameters are known."""
        if FIXED in trial.system_attrs or (proposal := self._propose()) is None:
            return {}
        return dict(self._parameters(proposal))

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """One parameter at random, as of a study that nothing is proposed for."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """Draws other numbers from now on, as in another process."""
        self._random.reseed_rng()
