"""Records as JSON, one per line: what `--json` prints."""

import json
import re
import sys

import msgspec

from cloister.core.text import ACTS

_ACTS = re.compile(f"[{ACTS}]")
"""What JSON may hold as it is and a terminal would act on. An escape says the same to whoever reads JSON."""


def put_json(record: object) -> None:
    """Print one record as one line, at once: whoever reads the pipe sees it now."""
    line = msgspec.json.encode(record, enc_hook=str).decode("utf-8")
    sys.stdout.write(_ACTS.sub(lambda found: json.dumps(found.group())[1:-1], line) + "\n")
    sys.stdout.flush()
