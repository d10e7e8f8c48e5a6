"""What a model can do: one file per tool."""
