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


def test_projects_keep_their_members_and_wrong_input_gets_one_sentence(
    cloister: Cloister, data_dir: Path
) -> None:
    made = cloister("project", "set", "ledger", "--repo", "git.example/ledger*", "--json")
    assert json.loads(made.stdout) == {"name": "ledger", "repos": ["git.example/ledger*"], "members": {}}
    assert (
        cloister("project", "member", "ledger", "group:pay", "steers").stdout == "group:pay steers ledger.\n"
    )
    assert json.loads(cloister("project", "members", "ledger", "--json").stdout) == ["group:pay", "steers"]
    assert cloister("project", "set", "ledger", "--repo", "a/*").stdout == "ledger: a/*; 1 members.\n"
    gone = cloister("project", "member", "ledger", "group:pay", "none")
    assert gone.stdout == "group:pay is no member of ledger any more.\n"
    for wrong, says in (
        (("project", "set", "Ledger!", "--repo", "x"), "cannot name a project"),
        (("project", "member", "none", "ana", "sees"), "There is no project 'none'"),
        (("project", "member", "ledger", "guest sh-1", "sees"), "A member is a person's name"),
        (("share", "add", "last", "--for", "soon"), "'soon' is no time"),
    ):
        found = cloister(*wrong)
        assert (found.returncode, found.stderr.count("\n")) == (2, 1) and says in found.stderr, wrong
    assert cloister("project", "rm", "ledger").stdout == "Removed ledger.\n"
