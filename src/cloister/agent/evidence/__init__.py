"""Evidence that a change works: checks, save points, proof."""
