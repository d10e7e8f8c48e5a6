"""Several repositories brought together into one commit, and what the rules, the settings and a hostile tree mean there."""

from pathlib import Path

import pytest

from cloister.core.errors import UserError
from cloister.core.requests import FurtherRepository, NewRun, Quota
from cloister.feedback.discover import discover, wanted
from cloister.forge import Forges
from cloister.forge.api import Base
from cloister.forge.host import in_bare
from cloister.forge.several import check_placed, compose, folders, tree_at
from cloister.policy.api import Layer, Rule, ToolAction
from cloister.policy.decide import PathRules, decide
from cloister.runs.attempts.context import kept_patterns
from cloister.runs.run_rules import RuleFiles, govern
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

HOST = Layer("host", (Rule("tool:write:.github/**", "deny", "config.toml, rule 1"),))


@pytest.fixture
def both(tmp_path: Path) -> tuple[SampleRepo, SampleRepo]:
    app, lib = SampleRepo(tmp_path / "app"), SampleRepo(tmp_path / "lib")
    app.write("app.py", "x = 1\n")
    app.write(".cloister/config.toml", 'keep = [".env"]\nchecks = ["make test"]\n')
    app.commit()
    lib.write("lib.go", "package lib\n")
    lib.write("go.mod", "module lib\n")
    lib.write("lib_test.go", "package lib\n")
    lib.write(".cloister/policy.toml", '[[rule]]\naction = "write:gen/**"\neffect = "deny"\n')
    lib.commit()
    return app, lib


async def brought(both: tuple[SampleRepo, SampleRepo], bare: Path) -> Base:
    return await Forges().bring_all([FurtherRepository(str(repo.path)) for repo in both], bare)


async def test_each_repository_is_a_folder_with_its_history(
    both: tuple[SampleRepo, SampleRepo], tmp_path: Path
) -> None:
    bare = tmp_path / "run.git"
    base = await brought(both, bare)
    assert [(part.folder, part.commit, part.branch) for part in base.parts] == [
        ("app", both[0].head, "main"),
        ("lib", both[1].head, "main"),
    ]
    for part in base.parts:
        whole = await in_bare(bare, "rev-parse", f"{part.commit}^{{tree}}")
        assert await tree_at(bare, base.commit, part.folder) == whole.out.decode().strip()
    parents = await in_bare(bare, "rev-list", "--parents", "-1", base.commit)
    assert parents.out.decode().split()[1:] == [both[0].head, both[1].head]
    assert (await brought(both, tmp_path / "again.git")).commit == base.commit
    assert not (await in_bare(tmp_path / "run.part.git", "rev-parse", "--git-dir")).ok


def test_folders_are_plain_names_and_never_the_same() -> None:
    addresses = [
        "https://h.example/a/app.git",
        "/srv/app/",
        "git@h.example:team/App",
        "/",
        "h:../..",
        "x/-.git",
    ]
    assert folders(addresses) == ("app", "app-2", "App-3", "repository", "repository-2", "repository-3")
    assert folders(["/srv/.cloister", "/srv/a b;c"]) == ("cloister", "a-b-c")
    # Each is a part of a ref.
    assert folders(["/srv/a..b", "/srv/a.lock", "/srv/a.lock."]) == ("a-b", "a", "a-2")


async def test_rules_about_paths_hold_in_the_folder_of_each_repository(
    both: tuple[SampleRepo, SampleRepo], tmp_path: Path
) -> None:
    bare = tmp_path / "run.git"
    base = await brought(both, bare)
    files = RuleFiles(tmp_path / "none.toml", False, HOST)
    request = NewRun("p", str(both[0].path), also=(FurtherRepository(str(both[1].path)),))
    governed = await govern(files, request, Quota(), bare, base.commit)
    assert f"repository (lib/.cloister/policy.toml@{base.commit[:12]})" in governed.layers
    denied = {
        path: decide(governed.policy, ToolAction("write", path)).effect == "deny"
        for path in ("app/.github/ci.yml", "lib/.github/ci.yml", "lib/gen/x", "app/gen/x", "gen/x", "app/x")
    }
    assert [path for path, no in denied.items() if no] == [
        "app/.github/ci.yml",
        "lib/.github/ci.yml",
        "lib/gen/x",
    ]
    # However a program makes the change.
    rules = PathRules(governed.policy)
    assert rules.denies("lib/GEN/x") and rules.denies("app/.github/a") and not rules.denies("app/gen/x")


async def test_settings_and_checks_are_those_of_each_folder(
    both: tuple[SampleRepo, SampleRepo], tmp_path: Path
) -> None:
    bare = tmp_path / "run.git"
    base = await brought(both, bare)
    assert await kept_patterns(bare, base.commit) == ("app/.env",)
    listed = await in_bare(bare, "ls-tree", "-r", "--name-only", base.commit)
    names = listed.out.decode().split()
    assert "app/.cloister/config.toml" in wanted(names)
    contents = {"app/.cloister/config.toml": 'checks = ["make test"]', "lib/go.mod": "module lib\n"}
    assert discover(names, contents, ["go"])[:2] == ("cd app && make test", "cd lib && go test ./...")


@pytest.mark.parametrize("stray", ["notes.txt", ".cloister/repositories/more", "lib", "libs/x"])
async def test_what_belongs_to_no_repository_is_refused(
    both: tuple[SampleRepo, SampleRepo], tmp_path: Path, stray: str
) -> None:
    bare = tmp_path / "run.git"
    base = await brought(both, bare)
    await check_placed(bare, base.commit, base.commit, ("app", "lib"))
    index = {"GIT_INDEX_FILE": str(tmp_path / "index")}
    blob = (await in_bare(bare, "hash-object", "-w", "--stdin", stdin=b"x")).out.decode().strip()
    await in_bare(bare, "read-tree", base.commit, env=index)
    if stray == "lib":  # a file in the place of a repository
        gone = b"0 " + b"0" * 40 + b"\tlib/lib.go\0" + b"0 " + b"0" * 40 + b"\tlib/go.mod\0"
        gone += (
            b"0 " + b"0" * 40 + b"\tlib/lib_test.go\0" + b"0 " + b"0" * 40 + b"\tlib/.cloister/policy.toml\0"
        )
        await in_bare(bare, "update-index", "-z", "--index-info", stdin=gone, env=index)
    line = f"100644 {blob}\t{stray}\0".encode()
    await in_bare(bare, "update-index", "-z", "--index-info", stdin=line, env=index)
    tree = (await in_bare(bare, "write-tree", env=index)).out.decode().strip()
    with pytest.raises(UserError, match=r"in none of the repositories|folder lib of a repository is gone"):
        await check_placed(bare, base.commit, tree, ("app", "lib"))


async def test_the_same_parts_are_the_same_commit(
    both: tuple[SampleRepo, SampleRepo], tmp_path: Path
) -> None:
    bare = tmp_path / "run.git"
    base = await brought(both, bare)
    again = await compose(bare, [(part.folder, part.commit) for part in base.parts])
    assert again == base.commit
