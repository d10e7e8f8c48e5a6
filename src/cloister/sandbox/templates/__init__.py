"""Templates: what they are made of, how they are built, and which of them are there."""
