"""A path that a `write:` or `edit:` rule denies is in no save point, proof or delivery, however it was changed."""

import subprocess
from pathlib import Path

import pytest
from tests.runs.arena import ADD, FINISH, SUB, Arena, bash, of, script

from cloister.core.errors import UserError
from cloister.core.events import ChangeMade, FinishRefused, ProofTaken, SaveRefused, TurnEnded
from cloister.forge.change import files
from cloister.forge.read import read_file
from cloister.policy.api import Layer, Pointed, Policy, Rule
from cloister.policy.decide import PathRules
from cloister.policy.layers import BUILT_IN
from cloister.runs.delivery import make_result
from cloister.runs.run_rules import check_change
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio


def deny(*actions: str) -> Policy:
    return (
        BUILT_IN,
        Layer("organisation", tuple(Rule(action, "deny", "policy.toml:1") for action in actions)),
    )


LOCKED = deny(
    "tool:write:locked/**", "tool:edit:ci/*.yml", "tool:write:Makefile", "tool:write:env/**/prod.env"
)


@pytest.fixture
def repo(tmp_path: Path) -> SampleRepo:
    made = SampleRepo(tmp_path / "repo")
    for name in (
        "locked/a",
        "locked/deep/b",
        "ci/x.yml",
        "ci/notes",
        "Makefile",
        "src/a.py",
        "shared/one",
        "other/x",
    ):
        made.write(name, f"{name}\n" * 20)
    (made.path / "locked" / "shared").symlink_to("../shared")
    (made.path / "elsewhere").symlink_to("other")
    made.commit()
    return made


DENIED = {
    "changed": "echo x >> locked/a",
    "changed by python": "python3 -c \"open('locked/deep/b', 'w')\"",
    "added": "echo x > locked/new",
    "added with spaces": "mkdir -p 'locked/a b'; echo x > 'locked/a b/c'",
    "deleted": "rm locked/a",
    "the directory deleted": "rm -r locked",
    "made executable": "chmod +x locked/a",
    "replaced by a link": "ln -sf ../src/a.py locked/a",
    "renamed away": "git mv locked/a src/b",
    "renamed to": "git mv src/a.py locked/c",
    "copied": "cp src/a.py ci/y.yml",
    "through a link to the directory": "ln -s locked x; echo x >> x/a; rm x",
    "through a link to the file": "ln -s Makefile x; echo x >> x; rm x",
    "through a hard link": "ln locked/a x; echo x >> x; rm x",
    "through a link that was there": "echo x >> shared/one",
    "a new file behind a link that was there": "echo x > shared/two",
    "the directory replaced by a link": "mv ci src/ci; ln -s src/ci ci",
    "the directory is a link to another that was there": "rm -r ci; ln -s other ci",
    "a new directory is a link": "mkdir env; mkdir tmp; echo x > tmp/prod.env; ln -s ../tmp env/x",
    "a link over two others": "mkdir env; mkdir tmp; echo x > tmp/prod.env; ln -s tmp t; ln -s ../t env/x",
    "a link by its full path": "mkdir env tmp; echo x > tmp/prod.env; ln -s /work/tmp env/x",
    "a link within a link": "mkdir -p env tmp in; echo x > in/prod.env; ln -s ../in tmp/y; ln -s ../tmp env/x",
    "another case": "echo x > makefile",
    "another case of a directory": "mkdir LOCKED; echo x > LOCKED/z",
    "an invisible character": "printf x > \"$(printf 'Make\\342\\200\\213file')\"",
    "a trailing dot": "echo x > Makefile.",
    "a repository in its place": "rm -r locked; git init -q locked; git -C locked -c user.name=n -c user.email=e"
    " commit -q --allow-empty -m x",
    "a submodule in its place": "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),locked/sub",
    "a submodule above it": "git rm -rqf ci; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),ci",
    "by plumbing": "git update-index --cacheinfo 100644,$(echo x | git hash-object -w --stdin),locked/a",
    "in a commit with attributes": "echo '* -diff export-ignore binary' > .gitattributes; echo x > locked/a",
}
ALLOWED = {
    "nothing": "true",
    "another file": "echo x >> src/a.py; echo y > Makefile.in",
    "a file of the directory that no rule names": "echo x >> ci/notes",
    "a link to a denied file": "ln -s locked/a x",
    "a link elsewhere": "ln -s /etc/passwd y; ln -s ../../z w; ln -s loop loop",
    "a file behind another link": "echo x >> other/x; echo x > other/new",
    "changed and changed back": "echo x >> locked/a; git checkout -q -- locked/a",
    "a submodule elsewhere": "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),vendor",
}


def tree_after(repo: SampleRepo, command: str) -> str:
    subprocess.run(["/bin/bash", "-ec", command], cwd=repo.path, check=True, capture_output=True)
    if "update-index" not in command:
        repo.git("add", "--all")
    return repo.git("write-tree").strip()


async def changed(repo: SampleRepo, command: str) -> None:
    """Judge the tree that `command` leaves."""
    base = repo.git("rev-parse", "HEAD").strip()
    tree = tree_after(repo, command)
    await check_change(LOCKED, repo.path / ".git", base, tree)


@pytest.mark.parametrize("name", DENIED)
async def test_denied_path_is_found_in_the_tree_however_it_was_changed(repo: SampleRepo, name: str) -> None:
    with pytest.raises(UserError) as refused:
        await changed(repo, DENIED[name])

    assert refused.value.code == "denied"
    assert "(policy.toml:1)" in refused.value.message
    assert refused.value.message.count("\n") == 0


@pytest.mark.parametrize("name", ALLOWED)
async def test_other_changes_are_saved(repo: SampleRepo, name: str) -> None:
    await changed(repo, ALLOWED[name])


async def test_long_list_of_denied_paths_is_cut(repo: SampleRepo) -> None:
    with pytest.raises(UserError, match=r"locked/new1 .* and 5 more: undo"):
        await changed(repo, "for n in 0 1 2 3 4 5 6 7 8 9; do echo x > locked/new$n; done")


def test_an_only_list_of_paths_denies_all_others() -> None:
    only = PathRules(
        (BUILT_IN, Layer("host", only=(Pointed("tool:write:src/**", "p:1"), Pointed("tool:read", "p:1"))))
    )

    assert only.denies("docs/a") == "only tool:write:src/** (p:1)"
    assert only.denies("src/a") is None
    assert not PathRules((BUILT_IN, Layer("host", only=(Pointed("tool:read"), Pointed("tool:bash:ls*")))))
    assert not PathRules((BUILT_IN, Layer("host", (Rule("tool:write", "deny"), Rule("tool:read:x", "deny")))))


FIX = f"{ADD}; {SUB}"
WAYS = {
    "python": "python3 -c \"open('locked', 'w').write('x')\"",
    "a link": "ln -s locked x; echo x > x; rm x",
    "a commit": "echo x > locked; git add -A; git -c user.name=n -c user.email=e commit -qm x",
    "plumbing": "git update-index --add --cacheinfo 100644,$(echo x | git hash-object -w --stdin),locked;"
    " git checkout-index locked",
}


@pytest.mark.parametrize("way", WAYS)
async def test_run_that_changes_a_denied_path_hears_of_it_and_is_green_only_without_it(
    arena: Arena, way: str
) -> None:
    arena.policy = deny("tool:write:locked")
    replies = (bash(f"{FIX}; {WAYS[way]}"), FINISH, bash("rm -f locked"), FINISH)
    journal = arena.journal(arena.request(script(*replies)))
    ended = await arena.run(journal)

    refused = of(journal, SaveRefused)
    assert "locked (deny tool:write:locked (policy.toml:1))" in refused[0].text
    assert of(journal, FinishRefused)
    assert ended.outcome == "proven"
    for commit in {body.commit for body in (*of(journal, TurnEnded), *of(journal, ProofTaken))}:
        assert "locked" not in [file.path for file in await files(arena.bare, arena.base, commit)]


async def test_run_that_keeps_a_denied_path_saves_nothing_and_is_not_green(arena: Arena) -> None:
    arena.policy = deny("tool:edit:locked")
    replies = (bash(f"{FIX}; echo x > locked"), bash("true", 'name = "on"'), f'{FINISH}\ngoto = "on"')
    journal = arena.journal(arena.request(script(*replies)))
    ended = await arena.run(journal)

    assert ended.outcome != "proven"
    assert of(journal, ProofTaken) == []
    assert {body.commit for body in of(journal, TurnEnded)} == {arena.base}


async def test_save_point_older_than_a_rule_is_not_accepted_or_delivered(arena: Arena) -> None:
    replies = (bash(f"{FIX}; echo x > locked"), FINISH)
    journal = arena.journal(arena.request(script(*replies)))
    ended = await arena.run(journal)
    assert await read_file(arena.bare, ended.commit, "locked") == b"x\n"

    arena.policy = deny("tool:write:locked")
    run = journal.events[0].run
    target = await arena.services().repositories.open(run)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(arena.bare)
    with pytest.raises(UserError, match=r"policy\.toml:1"):
        await make_result(arena.services(), journal, run, ended)
    assert of(journal, ChangeMade) == []
