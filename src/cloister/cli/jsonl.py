"""Records as JSON, one per line: what `--json` prints."""

import sys

import msgspec


def put_json(record: object) -> None:
    """Print one record as one line, at once: whoever reads the pipe sees it now."""
    sys.stdout.write(msgspec.json.encode(record, enc_hook=str).decode("utf-8") + "\n")
    sys.stdout.flush()
