"""What starts or steers runs from outside: webhooks, forges, the clock."""

HOOK_BYTES = 8_388_608
"""Largest body of a delivery."""
RUN_KEY = "trigger "
"""The idempotency keys of the runs that triggers start begin so, and no others."""
INBOX_FILE = "triggers.db"
"""Deliveries, tasks and marks, in the data directory."""
