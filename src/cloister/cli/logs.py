"""What the program says about itself, on stderr or in `server.log`: harmless like all that a person reads.

Messages quote errors, and errors quote what guests and repositories wrote.
"""

import logging
import time
from typing import TextIO

from cloister.core.text import harmless


class Harmless(logging.Formatter):
    """Time, level, message and traceback, with nothing in them that acts on a terminal."""

    converter = time.gmtime

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


def log_to(file: TextIO) -> None:
    """Warnings and worse go to `file`, for as long as the process lives."""
    handler = logging.StreamHandler(file)
    handler.setFormatter(Harmless())
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
