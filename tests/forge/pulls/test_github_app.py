"""A GitHub App in the settings: a short-lived token for one repository, errors in one sentence, and a key that stays on the host."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.forge.pulls.wires import WIRES, App, Forge

from cloister.app.forges import check_forge, find_repositories, forge_places
from cloister.app.settings import read_settings
from cloister.core.errors import OutsideError, UserError
from cloister.core.ids import RunId
from cloister.egress.credentials import Vault
from cloister.forge import Forges
from cloister.forge.api import Proposal
from cloister.forge.change import Author, commit_tree, describe
from cloister.forge.host import in_bare, oid

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("forge", ["github"], indirect=True)]

RIGHTS = {
    "metadata": "read",
    "contents": "write",
    "pull_requests": "write",
    "issues": "write",
    "checks": "read",
    "statuses": "read",
    "actions": "read",
}


@pytest.fixture(scope="module")
def key() -> RSAPrivateKey:
    return generate_private_key(65537, 2048)


@pytest.fixture
def app(forge: Forge, key: RSAPrivateKey) -> App:
    forge.app = App("4711", key.public_key(), dict(RIGHTS))
    return forge.app


def pem(key: RSAPrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()


def forges(forge: Forge, data: Path, text: str, more: str = "app_id = 4711") -> Forges:
    """As the settings name the forge; the private key is in a file."""
    data.mkdir(exist_ok=True)
    (data / "app.pem").write_text(text)
    (data / "config.toml").write_text(
        f'[[forge]]\nhost = "{forge.url.removeprefix("http://")}"\nkind = "github"\nfrom = "file:{data}/app.pem"\n'
        f'api = "{forge.url}{WIRES["github"][0]}"\ngit = "{forge.url}"\n{more}\n'
    )
    settings = read_settings({"USER": "tester"}, data)
    return Forges(places=forge_places(settings, Vault(settings.variables)))


async def test_a_change_is_delivered_with_one_token_for_its_repository(
    forge: Forge, app: App, key: RSAPrivateKey, tmp_path: Path
) -> None:
    repo, bare = f"{forge.url}/team/shop", tmp_path / "run.git"
    known = forges(forge, tmp_path / "data", pem(key))
    base = await known.at(repo).fetch(repo, None, bare)
    tree = oid((await in_bare(bare, "rev-parse", f"{base.commit}^{{tree}}")).out)
    commit = await commit_tree(bare, tree, base.commit, "Fix the total", Author("Ann <ann@example.org>"))
    wish = await describe(Proposal(RunId("r-1"), repo, base.commit, commit, "cloister/fix", bare))
    sent = await known.at(repo).deliver(wish)
    assert sent is not None
    assert (sent.number, forge.commit("cloister/fix")) == (1, commit)
    (asked,) = [one for one in forge.requests if one.method == "POST" and one.path.startswith("/app/")]
    assert (asked.body, len(app.issued)) == ({"repositories": ["shop"]}, 1)
    for path in bare.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        assert app.issued[0].encode() not in data
        assert b"PRIVATE KEY" not in data


async def test_a_token_that_ends_soon_is_replaced(
    forge: Forge, app: App, key: RSAPrivateKey, tmp_path: Path
) -> None:
    app.seconds = 200
    known, repo = forges(forge, tmp_path / "data", pem(key)), f"{forge.url}/team/shop"
    for _ in range(2):
        await known.at(repo).tip(repo, None, tmp_path)
    assert len(app.issued) == 2


async def test_the_check_names_the_permissions_that_the_app_lacks(
    forge: Forge, app: App, key: RSAPrivateKey, tmp_path: Path
) -> None:
    known, repo = forges(forge, tmp_path / "data", pem(key)), f"{forge.url}/team/shop"
    forge.may_push = False  # a repository's page does not tell the rights of an App
    found = await check_forge(known, repo)
    assert (found.may, found.default_branch, found.lacks) == (True, "main", ())
    app.permissions |= {"contents": "read"}
    del app.permissions["checks"]
    found = await check_forge(known, repo)
    assert (found.may, found.lacks) == (
        False,
        ("the App's permission contents: write", "the App's permission checks: read"),
    )


async def test_the_repositories_of_an_organisation_are_listed(
    forge: Forge, app: App, key: RSAPrivateKey, tmp_path: Path
) -> None:
    host = forge.url.removeprefix("http://")
    known = forges(forge, tmp_path / "data", pem(key))
    assert await find_repositories(known, f"{host}/team/*") == (f"https://{host}/team/shop",)


async def test_what_is_wrong_with_an_app_is_one_sentence_without_its_key(
    forge: Forge, app: App, key: RSAPrivateKey, tmp_path: Path
) -> None:
    repo, other = f"{forge.url}/team/shop", pem(generate_private_key(65537, 2048))

    async def problem(text: str, where: str = repo) -> str:
        with pytest.raises(OutsideError) as caught:
            await check_forge(forges(forge, tmp_path / "data", text), where)
        assert caught.value.code == "forge_denied"
        said = caught.value.message
        assert "\n" not in said
        assert not any(line in said for line in text.splitlines())
        return said

    assert "does not accept the private key of the GitHub App 4711" in await problem(other)
    assert "is not an RSA private key in PEM" in await problem("not a key at all")
    assert "not installed for team/other" in await problem(pem(key), f"{forge.url}/team/other")
    app.installed = False
    assert "not installed for team/shop" in await problem(pem(key))
    app.installed = True
    forge.faults.append(
        lambda asked: (403, {"message": "This installation has been suspended"}) if asked.body else None
    )
    assert "This installation has been suspended" in await problem(pem(key))


async def test_an_app_is_one_of_github(forge: Forge, key: RSAPrivateKey, tmp_path: Path) -> None:
    for more in ('app_id = ""', 'app_id = "a b"', "app_id = 0"):
        with pytest.raises(UserError, match="app_id is the number") as caught:
            forges(forge, tmp_path / "data", pem(key), more)
        assert caught.value.code == "bad_forge"
