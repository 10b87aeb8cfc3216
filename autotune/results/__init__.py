"""Result files: written, read, gathered, compared, and what they say in words."""
