"""Another key for the host, introduced by the one before it."""

import time
from pathlib import Path

from cloister.runs.audit import chain
from cloister.runs.audit.key import KEY_FILE, HostKey
from cloister.runs.schema import mapped, open_to_write


def rotate_key(path: Path) -> str:
    """Make a new key for the audit in the log at `path`; returns the public one. Raises `HostError`.

    The old key is gone afterwards; what it signed stays valid, and its public half stays with that.
    """
    key = HostKey(path.with_name(KEY_FILE))
    db = open_to_write(path)
    draft = key.draft()
    try:
        with mapped(path):
            db.execute("BEGIN IMMEDIATE")
            chain.rotate(db, key, draft.public, time.time())
            # The entry first: a crash here loses a key that nobody used, and the old one goes on.
            db.execute("COMMIT")
        draft.take()
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
        db.close()
        draft.drop()
    return draft.public
