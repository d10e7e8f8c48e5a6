"""UNDERSTAND what tools print: text to diagnosis, diagnosis against baseline. Pure."""
