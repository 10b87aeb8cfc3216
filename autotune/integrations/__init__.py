"""A tuned configuration in the words of other frameworks: Lightning, Fabric, transformers, Accelerate.

Each module is imported by itself (``from autotune.integrations import lightning``) and imports its framework only when
it is used. What a framework has words for is said in them; the rest is applied by the functions that bursts ran. What
is not in effect all the same is told by one warning that names each knob.
"""
