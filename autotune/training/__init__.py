"""A config at work, in bursts and in your training alike."""
