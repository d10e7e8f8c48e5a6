"""Code that runs in a sandbox piece by piece: interpreters whose variables live."""
