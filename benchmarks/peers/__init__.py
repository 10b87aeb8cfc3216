"""Other tools that choose how to train, run for real beside autotune: see `benchmarks.peers.run`."""
