"""READ A COMMAND LINE: which commands it would run, for rules about commands. Not a boundary: the sandbox is."""
