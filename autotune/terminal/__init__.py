"""What a person sees in a terminal: tables and progress."""
