"""Every knob, once: its values here, what it changes, how torch is told."""
