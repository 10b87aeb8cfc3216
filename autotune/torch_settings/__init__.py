"""Sets torch to the value of a knob: functions that change a model, an optimizer or the process, and undo it.

Bursts, your own training (`autotune.training`) and unchanged scripts call the same functions. They need only torch and
the standard library, and import no other room: in a script they run in an interpreter that may not have autotune, and
a namespace with the knobs that were sent stands for the `TrainConfig`. Start with `process_settings`.
"""
