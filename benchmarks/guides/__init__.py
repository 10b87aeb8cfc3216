"""The workloads of five hand-written tuning guides, with what each guide starts from and what it advises."""
