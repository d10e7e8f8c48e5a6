"""Webhooks: a signature proves the sender, a copy has the same key, and every forge names its repository."""

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest

from cloister.forge.hooks import CLOCK_SECONDS, genuine, repository

SECRET, NOW = "a-secret-of-the-hook", 1_800_000_000.0
BODY = b'{"a": 1}'
HMAC = hmac.new(SECRET.encode(), BODY, hashlib.sha256).hexdigest()


def standard(at: float, secret: str = SECRET, body: bytes = BODY) -> dict[str, str]:
    signed = hmac.new(secret.encode(), f"m1.{int(at)}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": "m1",
        "webhook-timestamp": str(int(at)),
        "webhook-signature": "v1,AAAA v1," + base64.b64encode(signed).decode(),
    }


GENUINE = [
    ("github", {"x-hub-signature-256": f"sha256={HMAC}"}),
    ("gitea", {"x-gitea-signature": HMAC}),
    ("gitea", {"x-forgejo-signature": HMAC}),
    ("bitbucket", {"x-hub-signature": f"sha256={HMAC}"}),
    ("pagure", {"x-pagure-signature-256": HMAC}),
    ("gitlab", {"x-gitlab-token": SECRET}),
    ("gitlab", standard(NOW)),
]


@pytest.mark.parametrize(("kind", "headers"), GENUINE)
def test_a_genuine_delivery_has_a_key_and_any_change_of_it_has_none(
    kind: str, headers: dict[str, str]
) -> None:
    assert genuine(kind, SECRET, headers, BODY, NOW)
    assert genuine(kind, SECRET + "x", headers, BODY, NOW) is None
    assert genuine(kind, SECRET, {}, BODY, NOW) is None
    for name in headers:
        assert genuine(kind, SECRET, headers | {name: "0" * 64}, BODY, NOW) is None
        assert genuine(kind, SECRET, headers | {name: "é" * 64}, BODY, NOW) is None
    if "token" not in str(headers):
        assert genuine(kind, SECRET, headers, BODY + b" ", NOW) is None


def test_headers_that_no_signature_covers_do_not_change_the_key_of_a_copy() -> None:
    signed = {"x-hub-signature-256": f"sha256={HMAC}"}
    first = genuine("github", SECRET, signed | {"x-github-delivery": "1"}, BODY, NOW)
    assert first == genuine("github", SECRET, signed | {"x-github-delivery": "2"}, BODY, NOW)


@pytest.mark.parametrize("shift", [-CLOCK_SECONDS - 1, CLOCK_SECONDS + 1])
def test_a_signed_time_that_is_far_off_is_refused(shift: float) -> None:
    assert genuine("gitlab", SECRET, standard(NOW), BODY, NOW + shift) is None


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("github", {"action": "created", "repository": {"full_name": "team/shop"}}),
        ("gitea", {"action": "label_updated", "repository": {"full_name": "team/shop"}}),
        ("bitbucket", {"pullrequest": {"id": 7}, "repository": {"full_name": "team/shop"}}),
        ("gitlab", {"object_kind": "note", "project": {"path_with_namespace": "team/shop"}}),
        ("pagure", {"msg": {"pullrequest": {"id": 7, "project": {"fullname": "team/shop"}}}}),
        ("pagure", {"msg": {"issue": {"id": 7, "project": {"fullname": "team/shop"}}}}),
        ("pagure", {"msg": {"project": {"fullname": "team/shop"}}}),
    ],
)
def test_a_delivery_of_each_forge_names_its_repository(kind: str, body: dict[str, Any]) -> None:
    assert repository(kind, json.dumps(body).encode()) == "team/shop"


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b"[1]", b"null", b'{"repository": 1}'])
@pytest.mark.parametrize("kind", ["github", "gitlab", "bitbucket", "pagure"])
def test_a_body_of_another_form_names_no_repository(kind: str, body: bytes) -> None:
    try:
        assert repository(kind, body) is None
    except ValueError as error:
        assert "not JSON" in str(error)


def test_a_name_of_a_megabyte_is_cut() -> None:
    named = repository("github", json.dumps({"repository": {"full_name": "x" * 1_000_000}}).encode())
    assert named == "x" * 1_000
