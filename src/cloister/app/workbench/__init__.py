"""Sandboxes and background commands that people start by hand, and that outlive the request."""
