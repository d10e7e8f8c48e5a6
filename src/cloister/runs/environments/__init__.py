"""Environments: a repository's tools, dependencies and services, installed once and kept as templates."""
