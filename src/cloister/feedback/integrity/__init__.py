"""Whether a change weakens the checks that judge it."""
