"""The search's way of choosing as an Optuna sampler."""

from __future__ import annotations

from pathlib import Path

import optuna

from autotune.knobs.config import TrainConfig
from autotune.search.distributions import make_distributions
from autotune.search.sampler import BayesSampler
from autotune.search.storage import make_sampler
from tests.search.surface import example_rate, journal_storage, make_search, make_space


def test_a_study_is_asked_for_what_the_model_proposes(tmp_path: Path) -> None:
    """Also one that was resumed from a journal: its trials are what the model learns from."""
    storage = tmp_path / "run.journal"
    search, _ = make_search(example_rate, budget_seconds=60, storage=journal_storage(storage))
    search.run()
    resumed, _ = make_search(example_rate, budget_seconds=600, storage=journal_storage(storage))
    expected = resumed._chooser.next(resumed.log.trials)
    assert expected is not None
    asked = resumed.log.study.ask(resumed.log.distributions)
    assert resumed.log.parameters(expected.point) == asked.params
    assert expected.point.config != TrainConfig(batch_size=64)


def test_by_itself_it_draws_at_random() -> None:
    """As where Optuna's own tools open the study."""
    study = optuna.create_study(sampler=make_sampler("bayes", 0), direction="maximize")
    assert isinstance(study.sampler, BayesSampler)
    study.optimize(lambda trial: float(len(trial.params)), n_trials=2)
    assert study.ask(make_distributions(make_space())).params
