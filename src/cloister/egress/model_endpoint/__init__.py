"""The model endpoint: programs inside the sandbox speak to the run's model, in their own wire format and without a key."""
