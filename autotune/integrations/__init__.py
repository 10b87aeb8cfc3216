"""A tuned configuration for other frameworks: Lightning, Fabric, transformers, Accelerate.

Each module is imported by itself (``from autotune.integrations import lightning``) and imports its framework only when
it is used. A knob for which the framework has an argument is passed as that argument; the functions that bursts ran
apply the others. One warning names each knob that is not in effect. May import `training`. Start with `common`.
"""
