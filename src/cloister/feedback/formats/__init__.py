"""One file per format that tools write: each a pure function from output to what was found."""
