"""A guest that lies: nothing of its configuration runs on the host, and the run's repository stays whole."""

import zlib
from collections.abc import Callable
from hashlib import sha1
from pathlib import Path

import pytest
from tests.forge.delivering import deliver

from cloister.core.computer import Command, Exited, Finished
from cloister.core.errors import CloisterError, SandboxLost, UserError
from cloister.forge import change, workspace
from cloister.forge.host import in_bare
from cloister.forge.plain_git import PlainGit
from cloister.testing.local import LocalComputer
from cloister.testing.samples import SampleRepo

pytestmark = pytest.mark.anyio

REF = "refs/cloister/r-1/1"

CONFIG = """
[core]
\tfsmonitor = {program}
\thooksPath = .git/evil
\tsshCommand = {program}
\tpager = {program}
\teditor = {program}
[sequence]
\teditor = {program}
[filter "evil"]
\tclean = {program}
\tsmudge = {program}
[diff]
\texternal = {program}
[diff "evil"]
\ttextconv = {program}
[merge "evil"]
\tdriver = {program}
[gpg]
\tprogram = {program}
[alias]
\tst = "!{program}"
[protocol "ext"]
\tallow = always
[remote "origin"]
\turl = ext::{program}
\tuploadpack = {program}
[uploadpack]
\tpackObjectsHook = {program}
[credential]
\thelper = {program}
[include]
\tpath = more
"""
HOOKS = ("post-checkout", "post-index-change", "reference-transaction", "pre-commit", "post-rewrite")
ATTRIBUTES = "* filter=evil diff=evil merge=evil\n"


class Liar(LocalComputer):
    """A guest that answers every command with the same words."""

    def __init__(self, root: Path, answer: bytes, exited: Exited | None = None) -> None:
        super().__init__(root)
        self._answer = answer
        self._exited = exited or Exited(0)

    async def run(self, command: Command, stdin: bytes = b"") -> Finished:
        return Finished(self._exited, self._answer, b"")


async def _start(repo: SampleRepo, tmp_path: Path) -> tuple[Path, str]:
    bare = tmp_path / "bare"
    return bare, (await PlainGit().fetch(str(repo.path), None, bare)).commit


def _contents(bare: Path) -> dict[str, bytes]:
    return {str(path.relative_to(bare)): path.read_bytes() for path in bare.rglob("*") if path.is_file()}


async def test_nothing_that_a_guest_configures_runs_on_the_host(repo: SampleRepo, tmp_path: Path) -> None:
    bare, base = await _start(repo, tmp_path)
    computer = LocalComputer(tmp_path / "guest")
    await workspace.put(computer, bare, base)
    program = computer.work / ".git" / "program"
    inside = tmp_path / "inside"
    # The program tells where it ran by its home: what runs inside is the guest's own business.
    program.write_text(f'#!/bin/sh\necho "$0 $HOME" >> {inside}\ncat\n')
    program.chmod(0o755)
    (computer.work / ".git" / "more").write_text(f"[core]\n\tfsmonitor = {program}\n")
    with (computer.work / ".git" / "config").open("a") as config:
        config.write(CONFIG.format(program=program))
    for folder in ("hooks", "evil"):
        (computer.work / ".git" / folder).mkdir()
        for hook in HOOKS:
            (computer.work / ".git" / folder / hook).symlink_to(program)
    (computer.work / ".gitattributes").write_text(ATTRIBUTES)
    (computer.work / "src" / "app.py").write_text("print('three')\n")
    (computer.work / "sub").mkdir()
    (computer.work / "sub" / ".git").write_text(f"gitdir: {computer.work}/.git\n")

    saved = await workspace.save(computer, bare, base, REF)
    ran_inside = inside.read_text().splitlines() if inside.exists() else []
    assert {line.split()[1] for line in ran_inside} <= {str(tmp_path / "guest")}

    inside.unlink(missing_ok=True)
    made = await change.make_change(bare, base, saved, "cloister/x", "Message")
    assert [file.path for file in await change.files(bare, base, made)] == [".gitattributes", "src/app.py"]
    assert "print('three')" in await change.diff(bare, base, made)
    await deliver(bare, made, "cloister/x", str(repo.path))
    repo_again = await PlainGit().fetch(str(repo.path), "cloister/x", tmp_path / "second")
    assert repo_again.commit == made
    assert not inside.exists()
    config = (bare / "config").read_text()
    assert "evil" not in config and str(program) not in config
    assert not (bare / "hooks").exists()


def _varint(size: int) -> bytes:
    data = bytearray()
    while size > 127:
        data.append((size & 127) | 128)
        size >>= 7
    return bytes([*data, size])


def _pack(*objects: tuple[int, bytes], count: int | None = None) -> bytes:
    """A pack of (type, content) objects: 1 commit, 2 tree, 3 blob, 4 tag."""
    body = b"PACK" + (2).to_bytes(4, "big") + (len(objects) if count is None else count).to_bytes(4, "big")
    for kind, content in objects:
        size = len(content)
        first = (kind << 4) | (size & 15)
        size >>= 4
        header = bytes([first | 128]) + _varint(size) if size else bytes([first])
        body += header + zlib.compress(content)
    return body + sha1(body).digest()


def _name(kind: str, content: bytes) -> str:
    return sha1(f"{kind} {len(content)}\0".encode() + content).hexdigest()


def _tree_of(mode: str, name: str, blob: bytes) -> tuple[str, bytes]:
    """A tree with one entry, and its name."""
    content = f"{mode} {name}".encode() + b"\0" + bytes.fromhex(_name("blob", blob))
    return _name("tree", content), content


def _good() -> bytes:
    tree, content = _tree_of("100644", "file", b"hello\n")
    return tree.encode() + b"\n" + _pack((2, content), (3, b"hello\n"))


def _of(mode: str, name: str) -> bytes:
    tree, content = _tree_of(mode, name, b"x")
    return tree.encode() + b"\n" + _pack((2, content), (3, b"x"))


def _parts_missing() -> bytes:
    tree, content = _tree_of("100644", "file", b"never sent")
    return tree.encode() + b"\n" + _pack((2, content))


def _a_commit_as_tree() -> bytes:
    tree, content = _tree_of("100644", "file", b"x")
    commit = f"tree {tree}\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\nm\n".encode()
    return _name("commit", commit).encode() + b"\n" + _pack((1, commit), (2, content), (3, b"x"))


def _a_hundred_gigabytes() -> bytes:
    """A header that promises far more than follows."""
    size = 100 << 30
    body = b"PACK" + (2).to_bytes(4, "big") + (1).to_bytes(4, "big")
    header = bytes([(3 << 4) | (size & 15) | 128]) + _varint(size >> 4)
    body += header + zlib.compress(b"tiny")
    return b"1" * 40 + b"\n" + body + sha1(body).digest()


def _a_delta_bomb() -> bytes:
    """A small blob, and a delta that repeats it until it is 8 GB: less than 100 KB to send."""
    blob, copies = b"x" * 65_536, 131_072
    copy = bytes([0x80 | 0x10 | 0x20 | 0x40]) + (65_536).to_bytes(3, "little")
    delta = _varint(len(blob)) + _varint(len(blob) * copies) + copy * copies
    base = bytes.fromhex(_name("blob", blob))
    whole = _pack((3, blob))
    size = len(delta)
    header = bytes([(7 << 4) | (size & 15) | 128]) + _varint(size >> 4)
    body = whole[:8] + (2).to_bytes(4, "big") + whole[12:-20] + header + base + zlib.compress(delta)
    return b"1" * 40 + b"\n" + body + sha1(body).digest()


async def test_an_honest_pack_made_by_hand_is_taken(repo: SampleRepo, tmp_path: Path) -> None:
    bare, base = await _start(repo, tmp_path)
    saved = await workspace.save(Liar(tmp_path / "guest", _good()), bare, base, REF)
    shown = await in_bare(bare, "cat-file", "blob", f"{saved}:file")
    assert shown.out == b"hello\n"
    assert [p.name for p in bare.iterdir() if p.name.startswith("cloister-")] == []


LIES: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "no name": lambda: b"hello, I am a tree\n" * 10,
    "an option as a name": lambda: b"--upload-pack=touch /tmp/marker;aaaaaaaaaaa\n",
    "a name and no objects": lambda: b"1" * 40 + b"\n",
    "a name and garbage": lambda: b"1" * 40 + b"\n" + b"PACK garbage" * 100,
    "a name that the pack does not have": lambda: b"1" * 40 + b"\n" + _good()[41:],
    "a truncated pack": lambda: _good()[:-10],
    "a wrong checksum": lambda: _good()[:-1] + bytes([_good()[-1] ^ 1]),
    "too many objects promised": lambda: b"1" * 40 + b"\n" + _pack((3, b"x"), count=4_000_000_000),
    "an object of 100 GB promised": _a_hundred_gigabytes,
    "a delta that grows to 8 GB": _a_delta_bomb,
    "a tree with parts missing": _parts_missing,
    "a commit for a tree": _a_commit_as_tree,
    "a .git directory": lambda: _of("40000", ".git"),
    "a .GIT file": lambda: _of("100644", ".GIT"),
    "a name with a slash": lambda: _of("100644", "a/../../b"),
    "dot dot": lambda: _of("100644", ".."),
    "no name at all": lambda: _of("100644", ""),
    "a .gitmodules link": lambda: _of("120000", ".gitmodules"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_is_a_lost_sandbox_and_changes_nothing(
    lie: str, repo: SampleRepo, tmp_path: Path
) -> None:
    bare, base = await _start(repo, tmp_path)
    before = _contents(bare)
    with pytest.raises(SandboxLost) as caught:
        await workspace.save(Liar(tmp_path / "guest", LIES[lie]()), bare, base, REF)
    assert "\n" not in caught.value.message
    assert _contents(bare) == before


@pytest.mark.parametrize(
    ("exited", "code"),
    [
        (Exited(1), "save_failed"),
        (Exited(None, signal=9), "save_failed"),
        (Exited(None, signal=9, killed="time"), "save_failed"),
        (Exited(None, signal=9, killed="output"), "change_too_large"),
    ],
)
async def test_a_guest_that_fails_to_save_is_an_error_with_a_reason(
    exited: Exited, code: str, repo: SampleRepo, tmp_path: Path
) -> None:
    bare, base = await _start(repo, tmp_path)
    with pytest.raises(UserError) as caught:
        await workspace.save(Liar(tmp_path / "guest", b"", exited), bare, base, REF)
    assert caught.value.code == code


async def test_a_tree_name_from_a_guest_is_checked(repo: SampleRepo, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    base = (await PlainGit().fetch(str(repo.path), None, bare)).commit
    for answer in (b"", b"; rm -rf /", b"\xff" * 41, b"A" * 40 + b"\n"):
        with pytest.raises(CloisterError):
            await workspace.tree(Liar(tmp_path / "guest", answer), bare, base)


async def test_a_save_outside_our_refs_is_a_bug(repo: SampleRepo, tmp_path: Path) -> None:
    bare, base = await _start(repo, tmp_path)
    with pytest.raises(CloisterError) as caught:
        await workspace.save(Liar(tmp_path / "guest", _good()), bare, base, "refs/heads/main")
    assert caught.value.code == "bug"
