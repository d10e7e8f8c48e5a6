"""Takes known secrets out of what a server says, however it is cut, without changing its length."""

import base64
import html
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

_BASE64_MIN = 8
"""Fewer characters of a secret in base64 would be found by chance."""
_ESCAPE = re.compile("%[0-9A-F]{2}")


def spellings(secret: str) -> frozenset[bytes]:
    """The ways in which a server may echo a secret: as it is, escaped for an address, JSON or HTML, in base64 or hex."""
    raw = secret.encode("utf-8")
    in_json = secret.replace("\\", "\\\\").replace('"', '\\"')
    escaped = {quote(secret, safe=""), quote(secret), quote_plus(secret)}
    escaped |= {_ESCAPE.sub(lambda found: found[0].lower(), text) for text in escaped}
    escaped |= {in_json, in_json.replace("/", "\\/"), html.escape(secret), html.escape(secret, quote=False)}
    found = {raw, raw.hex().encode(), raw.hex().upper().encode(), *(text.encode() for text in escaped)}
    for coded in (base64.b64encode, base64.urlsafe_b64encode):
        for lead in range(3):
            # Of base64 at an unknown place only the characters that belong to the secret alone are sure.
            text = coded(b"\0" * lead + raw)
            first, tail = (lead * 8 + 5) // 6, -(len(raw) + lead) % 3
            sure = text.rstrip(b"=")[first : len(text.rstrip(b"=")) - (1 if tail else 0)]
            if len(sure) >= _BASE64_MIN:
                found.add(sure)
    return frozenset(found)


class Redactor:
    """One stream's worth; every occurrence becomes as many asterisks."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._secrets = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        self._starts = {secret[:1] for secret in self._secrets}
        self._longest = max(map(len, self._secrets), default=0)
        self._held = b""

    def whole(self, data: bytes) -> bytes:
        """`data` that is all there is, e.g. a header's value."""
        for secret in self._secrets:
            if secret in data:
                data = data.replace(secret, b"*" * len(secret))
        return data

    def feed(self, data: bytes) -> bytes:
        """What can be passed on now; what may be the beginning of a secret is held back."""
        data = self.whole(self._held + data)
        keep = self._unsure(data)
        self._held = data[len(data) - keep :] if keep else b""
        return data[: len(data) - keep] if keep else data

    def end(self) -> bytes:
        """What was held back; nothing more comes."""
        held, self._held = self._held, b""
        return held

    def _unsure(self, data: bytes) -> int:
        """How many of the last bytes are the beginning of a secret."""
        for count in range(min(self._longest - 1, len(data)), 0, -1):
            tail = data[-count:]
            if tail[:1] in self._starts and any(secret.startswith(tail) for secret in self._secrets):
                return count
        return 0
