"""Recognition of obviously read-only command lines."""

import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.policy.shell.readonly import only_reads

READS = [
    "ls",
    "ls -la src tests/*.py",
    "cd src && cat a.py b.py | grep -n 'def add' | head -5",
    "sed -n 1,40p src/a.py",
    "sed -n '10,$p' src/a.py; echo done",
    "git status --short",
    "git log -3 --stat && git diff HEAD~1",
    "sleep 0.05; head -c 2000 a.txt",
    'grep -rn "a (b|c)" . || true',
]
MAY_WRITE = [
    "",
    "echo x > a.txt",
    "echo x>a.txt",
    "cat <<EOF",
    "cat a | tee b",
    "sed -i s/a/b/ c",
    "sed -n 'w out' a",
    "sed -n 1,2p -i a",
    "sed -n 1p a --in-place",
    "ls $(touch x)",
    "ls `touch x`",
    "ls & touch x",
    "ls\ntouch x",
    "ls; (touch x)",
    "ls || { touch x; }",
    "A=1 ls",
    "python3 x.py",
    "./ls",
    "git checkout .",
    "git diff --output=x",
    "git diff --ou x",
    "find . -delete",
    "sort -o a a",
    "$X",
    "ls 'unfinished",
    "function ls { touch x; }; ls",
]


@pytest.mark.parametrize("line", READS)
def test_obviously_read_only_line_is_recognised(line: str) -> None:
    assert only_reads(line)


@pytest.mark.parametrize("line", MAY_WRITE)
def test_any_other_line_may_change_files(line: str) -> None:
    assert not only_reads(line)


WORDS = [
    "ls",
    "cat",
    "echo",
    "sed",
    "-n",
    "1p",
    "git",
    "diff",
    "touch",
    "x",
    "tee",
    "--output=x",
    "-i",
    "cp",
    "a",
]
SIGNS = [">", ">>", ";", "&&", "|", "&", "(", ")", "'", '"', "`", "$(", "{", "}", "\\", "#", "<(", "!"]
PIECES = st.sampled_from((*WORDS, *SIGNS, "\n"))


@given(st.lists(PIECES, max_size=7), st.lists(st.sampled_from(["", " "]), min_size=7, max_size=7))
def test_no_line_recognised_as_read_only_creates_a_file(pieces: list[str], gaps: list[str]) -> None:
    """Run each recognised line with bash."""
    line = "".join(piece + gap for piece, gap in zip(pieces, gaps, strict=False))
    if not only_reads(line):
        return
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "a").write_text("x\n")
        subprocess.run(
            ["bash", "-c", line],
            cwd=place,
            capture_output=True,
            timeout=20,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert [(path.name, path.read_text()) for path in place.iterdir()] == [("a", "x\n")]
