"""Programs on this machine: begun so that nobody loses sight of one, ended with all that they started."""
