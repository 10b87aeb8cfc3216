"""Times a training loop block by block, and switches between the configs that train in it.

The same code runs in a host that trains a `build()` workload and in an unchanged script. `gate` opens for one block of
one player, `player` times it with a `clock`, and `protocol` and `wire` carry commands and laps. It needs only torch and
the standard library, and may import `torch_settings`. Start with `gate`.
"""
