"""TALK to language models."""
