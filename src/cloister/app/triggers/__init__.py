"""What starts or steers runs from outside: webhooks, forges, the clock."""

from cloister.core.errors import UserError

HOOK_BYTES = 8_388_608
"""Largest body of a delivery."""
RUN_KEY = "trigger "
"""The idempotency keys of the runs that triggers start begin so, and no others."""
INBOX_FILE = "triggers.db"
"""Deliveries, tasks and marks, in the data directory."""


def check_key(key: str | None) -> None:
    """Raises `UserError` (`bad_request`) for an idempotency key that only a trigger may use."""
    if key is not None and key.startswith(RUN_KEY):
        raise UserError(
            "bad_request", f"Keys that begin with {RUN_KEY!r} are those of triggers: use another."
        )
