"""The search: chooses which burst to run next, when to stop, and which config is best.

`driver.Search` runs it, with `trials.TrialLog` as its memory (an Optuna study, opened by `storage.open_study`) and
`stopping.Budget` as its clock. `choice` proposes by a `model` of effects and the `costs`, `refusals` refuses,
`confirmation` races the finalists, `diagnosis` explains. Nothing is re-exported, so that importing the budget does not
import Optuna. May import `doctor`, `scripts`, `bursts` and what lies below, and no torch. Start with `driver`.
"""
