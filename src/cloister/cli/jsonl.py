"""Records as JSON, one per line: what `--json` prints."""

import json
import re
import sys

import msgspec

_ACTS = re.compile("[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
"""What JSON may hold as it is and a terminal would act on."""


def put_json(record: object) -> None:
    """Print one record as one line, at once: whoever reads the pipe sees it now."""
    line = msgspec.json.encode(record, enc_hook=str).decode("utf-8")
    sys.stdout.write(_ACTS.sub(lambda found: json.dumps(found.group())[1:-1], line) + "\n")
    sys.stdout.flush()
