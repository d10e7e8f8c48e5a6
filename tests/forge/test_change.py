"""The change: its branch's name, its commit, its files and its diff."""

import subprocess
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import HostError, UserError
from cloister.core.ids import RunId, new_run_id
from cloister.core.requests import FileChange
from cloister.forge.change import Author, branch_name, diff, files, lines, make_change
from cloister.forge.host import in_bare
from cloister.forge.plain_git import PlainGit
from cloister.testing.samples import SampleRepo


def test_a_branch_is_named_after_the_prompt_and_the_run() -> None:
    assert (
        branch_name("Fix the failing test!", RunId("r-0123456789ab"))
        == "cloister/fix-the-failing-test-6789ab"
    )
    assert branch_name("日本語", RunId("r-0123456789ab")) == "cloister/change-6789ab"


@given(st.text(), st.builds(new_run_id))
def test_a_branch_name_is_always_valid(prompt: str, run: RunId) -> None:
    name = branch_name(prompt, run)
    assert name.startswith("cloister/") and name.endswith(f"-{run[-6:]}")
    assert len(name) <= 60
    # What git check-ref-format refuses, in one pattern of what is left.
    assert all(part and part.strip("abcdefghijklmnopqrstuvwxyz0123456789-") == "" for part in name.split("/"))
    assert ".lock" not in name and not any(part.startswith("-") for part in name.split("/"))


@pytest.mark.parametrize("prompt", ["", "-x --y", "a.lock", "@{0}", "..", "a\nb\0c", "x" * 5_000, "ſﬁ ẞ"])
def test_git_agrees(prompt: str) -> None:
    name = branch_name(prompt, RunId("r-0123456789ab"))
    subprocess.run(["git", "check-ref-format", "--branch", name], check=True, capture_output=True)


async def _two_commits(repo: SampleRepo, tmp_path: Path) -> tuple[Path, str, str]:
    base = repo.head
    commit = repo.commit("Saved by hand")
    bare = tmp_path / "bare"
    await PlainGit().fetch(str(repo.path), None, bare)
    return bare, base, commit


@pytest.mark.anyio
async def test_files_are_listed_with_their_lines(repo: SampleRepo, tmp_path: Path) -> None:
    repo.write("long.txt", "".join(f"line {n}\n" for n in range(40)))
    repo.write("tab\tand\nnewline", "1\n")
    repo.commit("Before")
    (repo.path / "moved").mkdir()
    repo.git("mv", "long.txt", "moved/long.txt")
    repo.write("README.md", "# Sample\n\nMore.\n")
    (repo.path / "src" / "app.py").unlink()
    (repo.path / "image.bin").write_bytes(bytes(range(256)))
    repo.write("tab\tand\nnewline", "1\n2\n")
    bare, base, commit = await _two_commits(repo, tmp_path)
    assert await files(bare, base, commit) == (
        FileChange("README.md", 2, 0, "modified"),
        FileChange("image.bin", 0, 0, "added"),
        FileChange("moved/long.txt", 0, 0, "renamed"),
        FileChange("src/app.py", 0, 1, "deleted"),
        FileChange("tab\\tand\\nnewline", 1, 0, "modified"),
    )
    assert await files(bare, base, base) == ()


@pytest.mark.anyio
async def test_a_diff_is_plain_text_and_bounded(repo: SampleRepo, tmp_path: Path) -> None:
    repo.write("README.md", "# Other\n")
    repo.write("many.txt", "x\n" * 10_000)
    (repo.path / "latin.txt").write_bytes(b"caf\xe9\n")
    bare, base, commit = await _two_commits(repo, tmp_path)
    whole = await diff(bare, base, commit)
    assert "-# Sample\n+# Other\n" in whole
    assert "+caf\N{REPLACEMENT CHARACTER}\n" in whole
    cut = await diff(bare, base, commit, limit_bytes=1_000)
    assert cut.endswith("\n[… the rest of the diff is cut off …]\n") and len(cut) < 1_100


@pytest.mark.anyio
async def test_a_change_is_one_commit_and_made_twice_the_same(repo: SampleRepo, tmp_path: Path) -> None:
    repo.write("new.txt", "x")
    bare, base, saved = await _two_commits(repo, tmp_path)
    message = "Fix it\n\nBecause.\x1b[31m\0 \ud800"
    made = [
        await make_change(
            bare, base, saved, "cloister/fix", message, Author("Ada Lovelace <ada@example.org>")
        )
        for _ in range(2)
    ]
    assert made[0] == made[1]
    shown = await in_bare(bare, "log", "--format=%P|%an|%ae|%cn|%B", "-1", "cloister/fix")
    assert shown.out.decode().rstrip("\n") == (
        f"{base}|Ada Lovelace|ada@example.org|Cloister|Fix it\n\nBecause.\\x00 ?"
    )
    assert [change.path for change in await files(bare, base, made[0])] == ["new.txt"]


@pytest.mark.anyio
async def test_a_change_is_signed_with_a_key_of_the_host(repo: SampleRepo, tmp_path: Path) -> None:
    repo.write("new.txt", "x")
    bare, base, saved = await _two_commits(repo, tmp_path)
    key, wrong = tmp_path / "key", tmp_path / "none"
    argv = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key))
    await anyio.run_process(argv)
    made = [await make_change(bare, base, saved, "cloister/fix", "Fix", Author(key=key)) for _ in range(2)]
    assert made[0] == made[1]
    (tmp_path / "signers").write_text(f"cloister@localhost {key.with_suffix('.pub').read_text()}")
    trust = ("-c", "gpg.format=ssh", "-c", f"gpg.ssh.allowedSignersFile={tmp_path / 'signers'}")
    verified = await in_bare(bare, *trust, "verify-commit", made[0])
    assert (verified.ok, b"Good" in verified.err and b"cloister@localhost" in verified.err) == (True, True)
    assert not (await in_bare(bare, *trust, "verify-commit", saved)).ok
    with pytest.raises(HostError) as caught:
        await make_change(bare, base, saved, "cloister/fix", "Fix", Author(key=wrong))
    assert (caught.value.code, str(wrong) in caught.value.message) == ("not_signed", True)


@pytest.mark.anyio
async def test_a_key_with_a_passphrase_is_an_error_and_no_question(repo: SampleRepo, tmp_path: Path) -> None:
    repo.write("new.txt", "x")
    bare, base, saved = await _two_commits(repo, tmp_path)
    argv = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(tmp_path / "key"))
    await anyio.run_process(argv)
    with anyio.fail_after(20), pytest.raises(HostError) as caught:
        await make_change(bare, base, saved, "cloister/fix", "Fix", Author(key=tmp_path / "key"))
    assert caught.value.code == "not_signed"


@pytest.mark.anyio
async def test_a_stray_repository_is_left_out_and_a_submodule_is_kept(
    repo: SampleRepo, tmp_path: Path
) -> None:
    base = repo.head
    repo.write(".gitmodules", '[submodule "x"]\n\tpath = lib\n\turl = https://example.org/lib\n')
    repo.git("add", ".gitmodules")
    for path in ("lib", "stray", "odd\nname"):
        repo.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},{path}")
    repo.git("commit", "--quiet", "--message", "Saved by hand")
    bare = tmp_path / "bare"
    await PlainGit().fetch(str(repo.path), None, bare)
    made = await make_change(bare, base, repo.head, "cloister/fix", "Fix")
    assert [change.path for change in await files(bare, base, made)] == [".gitmodules", "lib"]


@pytest.mark.anyio
@pytest.mark.parametrize("author", ["", "Ada", "Ada <>", "<a@b>", "A <a@b> <c@d>", "A\nB <a@b>"])
async def test_an_author_that_is_none_is_refused(author: str, repo: SampleRepo, tmp_path: Path) -> None:
    bare, base, saved = await _two_commits(repo, tmp_path)
    with pytest.raises(UserError):
        await make_change(bare, base, saved, "cloister/fix", "Fix", Author(author))


@pytest.mark.anyio
async def test_a_change_is_as_large_as_it_is_whatever_git_takes_for_binary(
    repo: SampleRepo, tmp_path: Path
) -> None:
    repo.write("a.js", "one\ntwo\n")
    repo.write(".gitattributes", "*.txt binary\n")
    repo.commit("Before")
    (repo.path / "a.js").write_bytes(b"// \0\n@@ -1,900 +1,900 @@\ntwo\nthree\n")
    repo.write("b.txt", "1\n2\n3\n")
    bare, base, commit = await _two_commits(repo, tmp_path)
    assert sum(file.added + file.removed for file in await files(bare, base, commit)) == 3, "git counts b.txt"
    assert await lines(bare, base, commit) == (1 + 3) + 3
    repo.write("c.txt", "x" * 5_000_000)
    (tmp_path / "larger").mkdir()
    bare, base, larger = await _two_commits(repo, tmp_path / "larger")
    assert await lines(bare, base, larger) > 1_000_000, "too large to be counted is large"
