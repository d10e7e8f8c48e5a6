"""Programs of the workbench that run inside sandboxes: the host only reads their text."""
