"""Parse a command line: which commands would it run? For policy rules; the sandbox is the security boundary."""
