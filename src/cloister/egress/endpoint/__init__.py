"""The model endpoint: any agent program inside speaks to the run's model, in its own wire format and without a key."""
