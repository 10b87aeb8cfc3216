"""What each sub-command does."""
