"""What this machine has. `probe()` reads it; `model` holds the records."""
