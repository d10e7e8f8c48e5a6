"""A forge of each kind with a repository, and the settings that name it."""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.forge.pulls.wires import TOKEN, WIRES, Forge, served

from cloister.forge.pulls.hosted import ForgePlace
from cloister.forge.pulls.http import Token
from cloister.testing.samples import SampleRepo


@pytest.fixture(params=sorted(WIRES))
def forge(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Forge]:
    """A forge with the repository `team/shop`, whose branches are `main` and `fix`."""
    work = SampleRepo(tmp_path / "work")
    work.write("cart.py", "total = 1\n")
    work.commit("First")
    work.git("branch", "fix")
    bare = tmp_path / "forge" / "team" / "shop.git"
    bare.parent.mkdir(parents=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(tmp_path / "work"), str(bare)], check=True)
    subprocess.run(["git", "-C", str(bare), "config", "http.receivepack", "true"], check=True)
    with served(request.param, tmp_path / "forge") as made:
        yield made
    assert not made.wrong, "\n".join(sorted(set(made.wrong)))


def place_of(forge: Forge, token: str = TOKEN, people: Mapping[str, str] = {}) -> ForgePlace:
    """The forge as the settings name it, with the tokens of people; requests are repeated without a pause."""

    async def read(_path: str) -> str:
        return token

    def of(own: str) -> Token:
        async def read() -> str:
            return own

        return read

    return ForgePlace(
        host=forge.url.removeprefix("http://"),
        kind=forge.kind,
        token=read,
        api=f"{forge.url}{WIRES[forge.kind][0]}",
        git=forge.url,
        labels=("agent",),
        people={who: of(own) for who, own in people.items()},
        pauses=(0.0, 0.0),
    )
