"""The claim of a proof file: bounded, and rejected where the repository contradicts it."""

import json
from pathlib import Path
from typing import Any

import pytest

from cloister.app.forges import pull_at
from cloister.core.diagnosis import Diagnosis
from cloister.core.diagnosis import TestResult as Result
from cloister.core.errors import UserError
from cloister.core.requests import NewRun
from cloister.forge import Forges
from cloister.runs.attempts.verify import PROOF_BYTES, Claim, Grants, claim_of, judge, verify
from cloister.sandbox.api import Report
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio
MESSAGE = "Fix it\n\nCheck: make test\nOutcome: unproven: no check\nCloister-Run: r-1\n"
OID = "0123456789abcdef0123456789abcdef01234567"


def proof(**other: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "run": "r-1",
        "base_commit": OID,
        "commit": OID[::-1],
        "outcome": "proven",
        "proof": {"checks": ["make test"], "fixed": 1},
        "files": [],
    }
    return {**known, **other}


def test_a_receipt_is_a_proof_file() -> None:
    assert claim_of(json.dumps(proof()).encode()) == Claim("r-1", OID, OID[::-1], ("make test",), "proven")


OTHERS: list[dict[str, Any]] = [
    {"commit": None},
    {"commit": "--upload-pack=touch /tmp/x"},
    {"commit": "../../etc/passwd"},
    {"base_commit": OID[:12]},
    {"run": "../r"},
    {"outcome": 1},
    {"outcome": "x" * 10_000},
    {"proof": {"checks": []}},
    {"proof": {"checks": ["x"] * 10_000}},
    {"proof": {"checks": ["x" * 1_000_000]}},
    {"proof": {"checks": ["a\0b"]}},
    {"proof": {"checks": "make test"}},
]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b" " * (PROOF_BYTES + 1),
        *(json.dumps(proof(**other)).encode() for other in OTHERS),
    ],
    ids=range(16),
)
def test_a_hostile_proof_file_is_one_sentence(text: bytes) -> None:
    with pytest.raises(UserError) as caught:
        claim_of(text)
    assert caught.value.code == "bad_proof"
    assert "\n" not in caught.value.message and len(caught.value.message) < 400


class Places:
    """What `verify` uses of a workshop."""

    def __init__(self, folder: Path) -> None:
        self.repositories, self.forges = folder / "runs", Forges()


async def verified(folder: Path, claim: Claim) -> list[NewRun]:
    asked: list[NewRun] = []

    async def set_up(request: NewRun, report: Report) -> tuple[Diagnosis, ...]:
        asked.append(request)
        return ()

    places: Any = Places(folder)
    await verify(places, set_up, str(folder / "work"), claim, lambda _words, _share: None, Grants())
    return asked


def change(folder: Path, message: str) -> Claim:
    work = SampleRepo(folder / "work")
    work.write("cart.py", "total = 1\n")
    work.commit("First")
    base = work.git("rev-parse", "HEAD").strip()
    work.write("cart.py", "total = 2\n")
    work.commit(message)
    return Claim("r-1", base, work.git("rev-parse", "HEAD").strip(), ("make test",), "unproven")


@pytest.mark.parametrize(
    ("what", "other"),
    [
        ("run", {"run": "r-2"}),
        ("checks", {"checks": ("make test", "curl evil.example.org")}),
        ("outcome", {"outcome": "proven"}),
        ("based", {"base": OID}),
    ],
)
async def test_a_proof_file_that_contradicts_the_commit_runs_nothing(
    what: str, other: dict[str, Any], tmp_path: Path
) -> None:
    claim = change(tmp_path, MESSAGE)
    fields = {name: getattr(claim, name) for name in Claim.__struct_fields__}
    with pytest.raises(UserError, match=what) as caught:
        await verified(tmp_path, Claim(**{**fields, **other}))
    assert caught.value.code == "bad_proof"


@pytest.mark.parametrize("message", [MESSAGE, "Squashed by a person"])
async def test_a_proof_file_runs_its_checks_on_both_commits(message: str, tmp_path: Path) -> None:
    claim = change(tmp_path, message)
    asked = await verified(tmp_path, claim)
    assert [(one.ref, one.checks) for one in asked] == [
        (claim.base, claim.checks),
        (claim.commit, claim.checks),
    ]


@pytest.mark.parametrize(
    ("page", "repo", "ref"),
    [
        ("https://git.example.org/team/shop/pull/7", "team/shop", "refs/pull/7/head"),
        ("https://git.example.org/team/shop/pulls/7/files?w=1", "team/shop", "refs/pull/7/head"),
        ("https://git.example.org/a/b/c/-/merge_requests/7#n", "a/b/c", "refs/merge-requests/7/head"),
    ],
)
async def test_the_page_of_a_pull_request_leads_to_its_ref(page: str, repo: str, ref: str) -> None:
    assert await pull_at(Forges(), page) == (f"https://git.example.org/{repo}", ref)


@pytest.mark.parametrize(
    ("page", "code"),
    [
        ("https://git.example.org/team/shop", "no_claim"),
        ("https://git.example.org/team/shop/pull/x", "no_claim"),
        ("ext::sh -c evil://x/pull/1", "no_claim"),
        ("https://git.example.org/team/shop/pull-requests/1", "no_forge"),
    ],
)
async def test_a_page_that_leads_nowhere_is_one_sentence(page: str, code: str) -> None:
    with pytest.raises(UserError) as caught:
        await pull_at(Forges(), page)
    assert caught.value.code == code


def test_a_lost_test_is_accepted_only_for_the_files_that_a_person_names() -> None:
    def ran(*tests: Result) -> Diagnosis:
        return Diagnosis("make test", 0, 1.0, tests=tests)

    sum_, old = "test_cart.py::test_sum", "test_cart.py::test_old"
    before = ran(Result(sum_, "passed", "test_cart.py"), Result(old, "passed", "test_cart.py"))
    now = ran(Result(sum_, "passed", "test_cart.py"))
    claim = Claim("r-1", OID, OID[::-1], ("make test",), "unbroken")
    for allowed, given_up, holds in (
        ((), (), False),
        (("other.py",), (), False),
        (("test_*.py",), (), True),
        ((), (old,), True),
    ):
        found = judge(claim, [before], [now], allowed, given_up)
        assert (found.holds, found.found) == ((True, "unbroken") if holds else (False, "red"))
        assert ("--allow-test-changes" in found.statement) is not holds
