"""What drives an attempt: the seam (`api.py`) and a folder for each harness."""
