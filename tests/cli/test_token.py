"""`cloister token`, as real processes."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from cloister.app.tokens import Tokens

Cloister = Callable[..., subprocess.CompletedProcess[str]]


def test_a_token_is_made_listed_and_removed(cloister: Cloister, data_dir: Path) -> None:
    made = cloister("token", "add", "ci", "--role", "operator")
    secret = made.stdout.removesuffix("\n")
    found = Tokens(data_dir).find(secret.encode())
    assert found is not None
    assert (found.name, found.role) == ("ci", "operator")
    listed = cloister("token", "list", "--json")
    assert json.loads(listed.stdout) == {"name": "ci", "role": "operator", "made_at": found.made_at}
    assert secret not in listed.stdout
    assert cloister("token", "rm", "ci").stdout == "Removed the token of ci.\n"
    assert Tokens(data_dir).all() == ()
    again = cloister("token", "rm", "ci")
    assert (again.returncode, again.stderr) == (
        2,
        "cloister: There is no token 'ci': `cloister token list` shows them.\n",
    )
