"""Where the roots of sandboxes come from and how they are copied."""
