"""The search: which burst to run next, when to stop, and what to call the best.

`driver.Search` runs it, with `trials.TrialLog` as its memory (an Optuna study, opened by `storage.open_study`) and
`stopping.Budget` as its clock. `choice` proposes by a `model` of effects and the `costs`, `refusals` refuses,
`confirmation` races the finalists, `diagnosis` explains. Nothing is re-exported: who asks for a budget should not have
to import Optuna.
"""
