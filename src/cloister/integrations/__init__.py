"""Sandboxes for agent frameworks: one module for each, named as the framework's package.

Each imports its framework, which is not among our requirements, and the Python client. Nothing here is imported by
another part. The server is the one that `AsyncClient()` finds: CLOISTER_SERVER and CLOISTER_TOKEN lead to another.
"""
