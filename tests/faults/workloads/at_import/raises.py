"""An import that raises."""

raise ValueError("the import went wrong")
