"""Pull requests: one seam, and a module for each kind of forge."""
