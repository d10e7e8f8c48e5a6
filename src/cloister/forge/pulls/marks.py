"""Marks of our own comments: a MAC with a key of the host, so that text of other people never counts as ours."""

import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path

from cloister.core.errors import HostError
from cloister.forge.pulls.api import Spot

_KEY_BYTES = 32
_SIGNED = re.compile(r"\s*<!-- cloister ([0-9a-f]{16}) [0-9a-f]{32} -->")
_FORM = re.compile(r"<!-- cloister\b")


class Marks:
    """Makes and checks the marks of one host. A mark holds for one place and one subject."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, place: str, spot: Spot, about: str) -> str:
        """The mark of a comment about `about`. `place` is the canonical name of the repository."""
        return self._of(place, spot, hashlib.sha256(about.encode()).hexdigest()[:16])

    def is_ours(self, place: str, spot: Spot, text: str) -> bool:
        """True if a text at this place begins with a mark that this host made for it."""
        found = _SIGNED.match(text)
        return found is not None and hmac.compare_digest(found[0].strip(), self._of(place, spot, found[1]))

    def _of(self, place: str, spot: Spot, subject: str) -> str:
        said = f"{place}\n{spot.kind} {spot.number}\n{subject}"
        return f"<!-- cloister {subject} {hmac.new(self._key, said.encode(), hashlib.sha256).hexdigest()[:32]} -->"


def looks_marked(text: str) -> bool:
    """True if a text begins as our comments do. Anyone can write such a text, so it may only silence its own author."""
    return _FORM.match(text.lstrip()) is not None


def read_key(path: Path) -> bytes:
    """The key in a file, which is made on first use and readable by its owner only. Raises `HostError`."""
    try:
        if not path.exists():
            draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)  # one server has the data directory
        key = path.read_bytes()
    except OSError as error:
        raise HostError(
            "comment_key_failed", f"The key of comments {path} cannot be used: {error.strerror}."
        ) from None
    if len(key) != _KEY_BYTES:
        raise HostError("comment_key_failed", f"The key of comments {path} is damaged: delete it.")
    return key
