"""The schema of policy files that is handed out is that of the records that read them."""

import json
from pathlib import Path

from cloister.policy.file import policy_schema

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "policy.schema.json"


def test_the_schema_in_the_reference_is_current() -> None:
    """If not: `cloister policy schema > docs/reference/policy.schema.json`."""
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == policy_schema()


def test_the_schema_rejects_unknown_keys() -> None:
    tables = policy_schema()["$defs"].values()

    assert all(table["additionalProperties"] is False for table in tables)
