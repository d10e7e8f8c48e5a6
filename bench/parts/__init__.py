"""What `bench/sandbox.py` measures, a part each, and what they share."""
