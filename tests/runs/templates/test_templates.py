"""Templates that hold a repository: made inside a sandbox, kept, kept fresh, and what runs start from."""

import os
import shutil
from pathlib import Path

import pytest

from cloister.core.computer import shell
from cloister.core.errors import UserError
from cloister.core.requests import NewRun, Quota
from cloister.forge import Forges, packs, workspace
from cloister.forge.plain_git import PlainGit
from cloister.runs.templates import Warming, Workshop, forget, known_baseline, same_repository, setup_lines
from cloister.sandbox.api import SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.templates.recipes import Devcontainer, Oci, Repository, Snapshot
from cloister.testing.samples import SampleRepo, busybox, folder, layer, layout, member, programs, push

pytestmark = pytest.mark.anyio

PATH = os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")


def needs(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool, path=PATH) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (scripts/install dev)")


def quiet(fraction: float | None, note: str) -> None:
    del fraction, note


@pytest.fixture
def shop(own_host: ContainerHost, own_dir: Path) -> Workshop:
    return Workshop(own_host.templates, own_host, Forges(), None, Quota(), own_dir / "repositories")


@pytest.fixture
async def small(shop: Workshop, tmp_path: Path) -> str:
    """A template of a few megabytes, for tests in which many are kept: what that takes is for the tests of the store."""
    shop.templates.keep_recipe("small", Oci(str(image_with_git(tmp_path / "image", Path("/bin/bash")))))
    await shop.prepare("small", quiet)
    return "small"


def project(at: Path) -> SampleRepo:
    repo = SampleRepo(at)
    repo.write("test_it.py", "def test_good(): pass\ndef test_bad(): assert False\n")
    repo.write(".gitignore", "venv/\n")
    repo.write(
        ".cloister.toml", 'setup = ["mkdir venv; echo $RANDOM > venv/stamp", "echo x > \'left [1]!\'"]\n'
    )
    repo.commit("base")
    return repo


async def opened(shop: Workshop, name: str, line: str) -> str:
    async with shop.host.open(SandboxSpec(template=name)) as sandbox:
        done = await sandbox.run(shell(line))
        assert done.ok, done.err
        return done.out.decode()


async def test_a_warmed_template_holds_the_clone_the_setup_and_the_baseline(
    shop: Workshop, tmp_path: Path
) -> None:
    repo = project(tmp_path / "repo")
    shop.templates.keep_recipe("warm", Repository(str(repo.path)))
    built = await shop.prepare("warm", quiet)
    assert (built.about.kind, built.about.commit) == ("repository", repo.head)
    assert built.about.checks == ("python3 -m pytest -q",)
    (diagnosis,) = built.about.baseline
    assert [test.name for test in diagnosis.tests if test.status == "failed"] == ["test_it.py::test_bad"]
    said = await opened(shop, "warm", "cat venv/stamp; git log --format=%H; git status --porcelain")
    assert said.split()[1:] == [repo.head], "and nothing in it looks like a change"
    assert "test_bad" in shop.templates.log("warm")


async def test_a_run_that_starts_from_it_is_brought_to_the_newest_commit(
    shop: Workshop, tmp_path: Path
) -> None:
    repo = project(tmp_path / "repo")
    shop.templates.keep_recipe("warm", Repository(str(repo.path)))
    built = await shop.prepare("warm", quiet)
    old = repo.head
    (repo.path / "test_it.py").unlink()
    repo.write("new.py", "x = 1\n")
    repo.commit("moved")
    assert known_baseline(built, old, ()) == (built.about.checks, built.about.baseline)
    assert known_baseline(built, old, ("true",)) is None
    assert known_baseline(built, repo.head, ()) is None
    bare = tmp_path / "bare.git"
    base = await PlainGit().fetch(str(repo.path), None, bare)
    async with shop.host.open(SandboxSpec(template="warm")) as sandbox:
        await workspace.sync(sandbox, bare, old, base.commit)
        listed = await sandbox.run(shell("ls -A; git rev-parse HEAD"))
        assert set(listed.out.decode().split("\n")[:-2]) == {
            *(".git", ".gitignore", ".cloister.toml", "new.py", "venv", "left [1]!")
        }
        assert listed.out.decode().split()[-1] == repo.head
        saved = await workspace.save(sandbox, bare, base.commit, "refs/cloister/attempt/0")
        assert saved == base.commit, "what the setup left is no change"
        await sandbox.write("mine.py", b"y = 2\n")
        assert await workspace.save(sandbox, bare, base.commit, "refs/cloister/attempt/0") != base.commit


async def test_setup_is_read_from_both_files_as_checks_are(tmp_path: Path) -> None:
    repo, bare = SampleRepo(tmp_path / "repo"), tmp_path / "bare.git"

    async def lines() -> tuple[str, ...]:
        commit = repo.commit("another")
        await PlainGit().fetch(str(repo.path), None, bare)
        return await setup_lines(bare, commit)

    repo.write(".cloister/config.toml", 'checks = ["true"]\nsetup = ["make deps"]\n')
    assert await lines() == ("make deps",)
    repo.write(".cloister.toml", 'checks = ["true"]\n')
    assert await lines() == ("make deps",)
    repo.write(".cloister.toml", 'setup = [" ", "make all"]\n')
    assert await lines() == ("make all",)
    repo.write(".cloister.toml", "")
    repo.write(".cloister/config.toml", "setup = 3\n")
    with pytest.raises(UserError, match=r"`setup` in \.cloister/config\.toml must be a list") as caught:
        await lines()
    assert caught.value.code == "bad_setup"


async def test_only_missing_objects_are_copied_and_a_damaged_repository_is_repaired(
    shop: Workshop, small: str, tmp_path: Path
) -> None:
    repo = project(tmp_path / "repo")
    repo.write("large", "".join(f"{number * number} " for number in range(200_000)))
    old = repo.commit("large")
    shop.templates.keep_recipe("warm", Repository(str(repo.path), base=small))
    await shop.prepare("warm", quiet)
    repo.write("small", "x")
    repo.commit("moved")
    bare = tmp_path / "bare.git"
    base = await PlainGit().fetch(str(repo.path), None, bare)
    since, whole = await packs.pack_since(bare, old, base.commit), await packs.pack(bare, base.commit)
    assert since is not None and len(since.data) * 100 < len(whole.data)
    assert await packs.pack_since(bare, "0" * 40, base.commit) is None
    for damage in ("true", "rm -rf .git/objects", "rm -rf .git/refs .git/HEAD", "rm -f .git/index"):
        async with shop.host.open(SandboxSpec(template="warm")) as sandbox:
            await sandbox.run(shell(damage))
            await workspace.sync(sandbox, bare, old, base.commit)
            said = await sandbox.run(shell("git fsck --no-dangling && git rev-parse HEAD && ls small venv/*"))
            assert said.out.decode().split() == [base.commit, "small", "venv/stamp"], said.err
            assert await workspace.save(sandbox, bare, base.commit, "refs/cloister/attempt/0") == base.commit
    async with shop.host.open(SandboxSpec(template="warm")) as sandbox:
        same = await PlainGit().fetch(str(repo.path), old, bare)
        await workspace.sync(sandbox, bare, old, same.commit)
        assert (await sandbox.run(shell("git rev-parse HEAD"))).out.decode().strip() == old


async def test_a_setup_that_fails_is_named_and_leaves_no_template(shop: Workshop, tmp_path: Path) -> None:
    repo = project(tmp_path / "repo")
    repo.write(".cloister.toml", 'setup = ["echo so; echo it was >&2; exit 7"]\n')
    repo.commit()
    shop.templates.keep_recipe("warm", Repository(str(repo.path)))
    with pytest.raises(UserError, match=r"status 7.*it was") as failed:
        await shop.prepare("warm", quiet)
    assert failed.value.code == "setup_failed"
    assert shop.templates.find("warm") is None
    assert sorted(p.name for p in (tmp_path / "data/templates").glob(".building*")) == []
    repo.write(".cloister.toml", "setup = 3\n")
    repo.commit()
    with pytest.raises(UserError) as failed:
        await shop.prepare("warm", quiet)
    assert failed.value.code == "bad_setup"


NPM = """\
echo 'npm error code E404'
echo 'npm error 404 Not Found - GET http://registry.test/left-pad'
echo npm error
echo 'npm notice New major version of npm available!'
echo "npm error A complete log of this run can be found in: $HOME/.npm/_logs/2026-debug-0.log" >&2
exit 1
"""
OLD_NPM = """\
echo 'npm ERR! code EINTEGRITY'
echo 'npm ERR! A complete log of this run can be found in:'
echo "npm ERR!     $HOME/.npm/_logs/2026-debug.log"
exit 1
"""
YARN = """\
mkdir -p /tmp/xfs-1
echo '/bin/sh: 1: node-gyp: not found' > /tmp/xfs-1/build.log
echo "native@npm:1 couldn't be built successfully (exit code 1, logs can be found here: /tmp/xfs-1/build.log)"
echo 'Done in 3 s'
exit 1
"""
SILENT = """\
echo 'cc1plus: fatal error: killed' > make.log
echo 'See make.log for the full log.'
exit 2
"""
PIP = """\
echo "error: command 'gcc' failed: No such file or directory"
echo '[end of output]'
echo 'note: This error originates from a subprocess, and is likely not a problem with pip.'
echo '[notice] A new release of pip is available'
printf 'ERROR: Failed building wheel for fast'
exit 1
"""


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            NPM,
            "(status 1): npm error code E404; npm error 404 Not Found - GET http://registry.test/left-pad (",
        ),
        (OLD_NPM, "(status 1): npm ERR! code EINTEGRITY ("),
        (YARN, "couldn't be built successfully (exit code 1; /bin/sh: 1: node-gyp: not found ("),
        (SILENT, "(status 2): cc1plus: fatal error: killed ("),
        (PIP, "'gcc' failed: No such file or directory; ERROR: Failed building wheel for fast ("),
    ],
)
async def test_a_setup_that_fails_shows_its_error_and_not_where_a_log_was(
    shop: Workshop, tmp_path: Path, script: str, told: str
) -> None:
    repo = project(tmp_path / "repo")
    repo.write(".cloister.toml", 'setup = ["sh install.sh"]\n')
    repo.write("install.sh", script)
    repo.commit()
    shop.templates.keep_recipe("warm", Repository(str(repo.path)))

    with pytest.raises(UserError) as failed:
        await shop.prepare("warm", quiet)

    assert told in failed.value.message
    assert ".log" not in failed.value.message
    assert failed.value.message.endswith("(`cloister template log warm`)")


async def test_a_log_inside_that_the_output_names_is_kept_with_the_build(
    shop: Workshop, tmp_path: Path
) -> None:
    repo = project(tmp_path / "repo")
    repo.write(".cloister.toml", 'setup = ["sh install.sh"]\n')
    repo.write("install.sh", SILENT)
    repo.commit()
    shop.templates.keep_recipe("warm", Repository(str(repo.path)))

    with pytest.raises(UserError):
        await shop.prepare("warm", quiet)

    assert "== the end of make.log in the sandbox\ncc1plus: fatal error" in shop.templates.log("warm")


async def test_the_baseline_of_a_warmed_template_names_no_file_of_its_sandbox(
    shop: Workshop, tmp_path: Path
) -> None:
    repo = project(tmp_path / "repo")
    repo.write("test_it.py", "def test_bad():\n    print('x' * 9_000)\n    assert False\n")
    repo.commit()
    shop.templates.keep_recipe("warm", Repository(str(repo.path)))

    built = await shop.prepare("warm", quiet)

    assert [one.log for one in built.about.baseline] == [None]


async def test_it_is_warmed_again_when_its_repository_moves_or_its_time_is_up(
    shop: Workshop, small: str, tmp_path: Path
) -> None:
    repo = project(tmp_path / "repo")
    recipe = Repository(str(repo.path), base=small)
    shop.templates.keep_recipe("warm", recipe)
    warming = Warming(shop)
    assert await warming.refresh("warm", recipe)
    assert not await warming.refresh("warm", recipe)
    repo.write("more.py")
    repo.commit("moved")
    assert await warming.refresh("warm", recipe)
    assert not await warming.refresh("warm", recipe)
    assert await warming.refresh("warm", Repository(str(repo.path), base=small, minutes=-1))
    built = shop.templates.built("warm")
    assert built is not None and built.about.commit == repo.head
    assert len(list((tmp_path / "data/templates").glob("warm-*"))) == 1, "old ones go"


async def test_a_commit_that_cannot_be_warmed_is_not_tried_all_the_time(
    shop: Workshop, small: str, tmp_path: Path
) -> None:
    repo = project(tmp_path / "repo")
    repo.write(".cloister.toml", 'setup = ["false"]\n')
    repo.commit()
    recipe = Repository(str(repo.path), base=small)
    shop.templates.keep_recipe("warm", recipe)
    warming = Warming(shop)
    with pytest.raises(UserError):
        await warming.refresh("warm", recipe)
    assert not await warming.refresh("warm", recipe)
    repo.write(".cloister.toml", "")
    repo.commit("mended")
    assert await warming.refresh("warm", recipe)


async def test_a_run_starts_from_the_warmed_template_of_its_repository_and_no_other(
    shop: Workshop, small: str, tmp_path: Path
) -> None:
    repo = project(tmp_path / "repo")
    (repo.path / "below").mkdir()
    other = SampleRepo(tmp_path / "other")
    other.commit()
    shop.templates.keep_recipe("warm", Repository(str(repo.path), base=small))
    warming = Warming(shop)
    mine = NewRun(prompt="p", repo=str(repo.path / "below"), template=small)
    assert await warming.choose(mine) == small, "nobody waits for one that is not ready"
    await shop.prepare("warm", quiet)
    assert await warming.choose(mine) == "warm"
    assert await warming.choose(NewRun(prompt="p", repo=str(other.path), template=small)) == small
    assert await warming.choose(NewRun(prompt="p", repo=str(repo.path))) == "default", (
        "it is made from another"
    )
    assert await warming.choose(NewRun(prompt="p", repo=str(repo.path), template="warm")) == "warm"
    assert await warming.choose(NewRun(prompt="p", repo=str(repo.path), template="else")) == "else"


def test_urls_name_the_same_repository_with_and_without_their_ending() -> None:
    assert same_repository("https://example.org/a/b.git", "https://example.org/a/b/")
    assert same_repository("https://example.org:443/a/b", "git@EXAMPLE.org:a/b.git")
    assert not same_repository("https://example.org/a/b", "https://example.org/a/c")
    assert not same_repository("https://example.org/a/b", "/nowhere")


async def test_a_template_that_holds_a_repository_is_no_base_for_another(
    shop: Workshop, tmp_path: Path
) -> None:
    shop.templates.keep_recipe("one", Repository(str(tmp_path), base="one"))
    with pytest.raises(UserError) as refused:
        await shop.prepare("one", quiet)
    assert refused.value.code == "bad_template"


def image_with_git(at: Path, *more: Path) -> Path:
    needs("git", "busybox", "skopeo", "ldd")
    passwd = b"root:x:0:0::/root:/bin/sh\ndev:x:1234:1234::/home/dev:/bin/sh\n"
    tree = layer(
        *busybox(),
        *programs(Path("/usr/bin/git"), *more),
        member("etc/passwd", passwd),
        folder("home"),
        folder("home/dev", uid=1234, gid=1234),
    )
    return layout(at, tree, Env=["PATH=/bin:/usr/bin"])


def devcontainer(at: Path, text: str) -> SampleRepo:
    repo = SampleRepo(at)
    repo.write(".devcontainer/devcontainer.json", text)
    repo.write(".devcontainer/tool/install.sh", 'id -u > /tool; echo "$VERSION $_REMOTE_USER" >> /tool\n')
    repo.commit("base")
    return repo


async def test_a_devcontainer_becomes_a_template_with_its_commands_run_inside(
    shop: Workshop, registry: str, tmp_path: Path
) -> None:
    image = f"{registry}/some/tools:3"
    push(image_with_git(tmp_path / "image"), "--dest-tls-verify=false", f"docker://{image}")
    repo = devcontainer(
        tmp_path / "repo",
        f"""{{ // what we work in
        "image": "{image}", "remoteUser": "dev", "containerEnv": {{ "TOOLS": "${{containerEnv:PATH}}:/tools" }},
        "features": {{ "./tool": "3" }},
        "postCreateCommand": "id -u > made; echo $TOOLS $HOME >> made; echo kept > ~/kept", }}""",
    )
    shop.templates.keep_recipe("dev", Devcontainer(str(repo.path), tls=False))
    built = await shop.prepare("dev", quiet)
    assert (built.about.kind, built.about.home, built.about.git) == ("devcontainer", "/home/dev", True)
    async with shop.host.open(SandboxSpec(template="dev")) as sandbox:
        assert await sandbox.read("made") == b"1000\n/bin:/usr/bin:/tools /home/dev\n"
        assert await sandbox.read("/tool") == b"0\n3 agent\n"
        assert await sandbox.read("/home/dev/kept") == b"kept\n"
    assert isinstance(shop.templates.recipe("dev-image"), Oci)
    assert await forget(shop.templates, shop.repositories, "dev") == 2
    assert shop.templates.names() == ("browser", "default")
    assert list(shop.repositories.iterdir()) == []


async def test_a_devcontainers_dockerfile_is_built_from_the_commit(shop: Workshop, tmp_path: Path) -> None:
    needs("busybox")
    repo = devcontainer(tmp_path / "repo", '{"build": {"dockerfile": "Dockerfile", "context": ".."}}')
    repo.write(".devcontainer/Dockerfile", "FROM scratch\nADD root.tar /\nCOPY here /here\n")
    (repo.path / "root.tar").write_bytes(layer(*busybox()))
    repo.write("here", "committed")
    repo.commit()
    repo.write("here", "not committed")
    shop.templates.keep_recipe("dev", Devcontainer(str(repo.path)))
    built = await shop.prepare("dev", quiet)
    assert (built.rootfs / "here").read_text() == "committed"
    assert not built.about.git
    assert [path.name for path in (tmp_path / "data/repositories").iterdir()] == ["dev.git"]


@pytest.mark.parametrize("name", ["Dockerfile", "around"])
async def test_a_devcontainer_cannot_make_files_of_this_machine_its_own(
    shop: Workshop, tmp_path: Path, name: str
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "Dockerfile").write_text("hidden words")
    repo = devcontainer(
        tmp_path / "repo", '{"build": {"dockerfile": "around/Dockerfile", "context": "around"}}'
    )
    if name == "around":
        (repo.path / ".devcontainer/around").symlink_to(secret)
    else:
        (repo.path / ".devcontainer/around").mkdir()
        (repo.path / ".devcontainer/around/Dockerfile").symlink_to(secret / "Dockerfile")
    repo.commit()
    shop.templates.keep_recipe("dev", Devcontainer(str(repo.path)))
    with pytest.raises(UserError) as refused:
        await shop.prepare("dev", quiet)
    assert refused.value.code in ("bad_devcontainer", "no_dockerfile")
    assert "hidden" not in str(refused.value)


async def test_error_for_a_missing_devcontainer_names_the_searched_paths(
    shop: Workshop, tmp_path: Path
) -> None:
    repo = SampleRepo(tmp_path / "repo")
    repo.write("target.json", "{}")
    (repo.path / ".devcontainer.json").symlink_to("target.json")
    repo.commit()
    shop.templates.keep_recipe("dev", Devcontainer(str(repo.path)))
    with pytest.raises(UserError, match=r"no \.devcontainer/devcontainer\.json"):
        await shop.prepare("dev", quiet)


async def test_a_snapshot_becomes_a_template_that_outlives_it(shop: Workshop) -> None:
    async with shop.host.open(SandboxSpec()) as sandbox:
        await sandbox.run(
            shell("echo kept > file; rm ~/.bashrc; echo mine > /etc/motd", user="root", cwd="/work")
        )
        kept = await sandbox.snapshot()
    shop.templates.keep_recipe("mine", Snapshot(kept.id, env={"COLOUR": "red"}))
    told: list[tuple[float | None, str]] = []
    built = await shop.prepare("mine", lambda fraction, note: told.append((fraction, note)))
    assert (built.about.kind, built.about.base, built.about.git) == ("snapshot", kept.id, True)
    assert [note for _, note in told if "snapshot" in note], "it is said what is being done"
    await shop.host.delete_snapshot(kept.id)
    assert (
        await opened(shop, "mine", "cat file /etc/motd; echo $COLOUR; id -un") == "kept\nmine\nred\nagent\n"
    )
    with pytest.raises(UserError) as refused:
        await shop.prepare("mine", quiet, again=True)
    assert refused.value.code == "unknown_snapshot"
    assert await opened(shop, "mine", "cat file") == "kept\n", "what was ready stays ready"
    assert "failed: " in shop.templates.log("mine")
    assert not list(shop.templates.find("mine").parents[1].glob(".building-*"))  # type: ignore[union-attr]
