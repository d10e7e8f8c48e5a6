"""Stand-ins for secrets: as long and made of the same kinds of characters, so that tools take them for real ones."""

import secrets
import string

MIN_CHARS = 8
"""A shorter secret could neither be replaced nor found without doubt."""

_PREFIXES = (
    "github_pat_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "glpat-",
    "gldt-",
    "sk-ant-api03-",
    "sk-ant-",
    "sk-proj-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "sk-",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "npm_",
    "pypi-",
    "hf_",
    "dckr_pat_",
    "lin_api_",
    "glsa_",
    "dop_v1_",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "SG.",
)
"""What programs look at to tell one kind of token from another; it is the same in all of them and says nothing."""

_KINDS = (string.ascii_lowercase, string.ascii_uppercase, string.digits)


def fake(secret: str) -> str:
    """A stand-in that has nothing of `secret` but its kind, its length and its punctuation."""
    prefix = next((known for known in _PREFIXES if secret.startswith(known)), "")
    while True:
        made = prefix + "".join(map(_like, secret[len(prefix) :]))
        if made != secret:
            return made


def _like(char: str) -> str:
    for kind in _KINDS:
        if char in kind:
            return secrets.choice(kind)
    return char


def placeholder(name: str) -> str:
    """What may be written instead of the stand-in."""
    return f"{{{{secret:{name}}}}}"
