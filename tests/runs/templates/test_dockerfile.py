"""The parser of Dockerfiles, the patterns of copies, and what they refuse."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import UserError
from cloister.runs.images.dockerfile import State, after, exec_form, parse
from cloister.runs.images.image_context import Tree, ignore_text
from cloister.sandbox.templates.oci import registry_host, registry_name

PLATFORM = {"TARGETPLATFORM": "linux/amd64", "TARGETARCH": "amd64"}


def state_of(text: str, args: dict[str, str] | None = None) -> State:
    """The state after the last stage."""
    parsed = parse(text, args or {}, PLATFORM)
    state = State()
    for each in parsed.stages[-1].instructions:
        state = after(state, each, parsed.args, args or {})
    return state


def names(text: str) -> list[tuple[str, str]]:
    return [(each.name, each.rest) for each in parse(text, {}, PLATFORM).stages[-1].instructions]


def test_lines_are_joined_and_comments_left_out() -> None:
    text = "\ufeff# escape=\\\nFROM scratch\n# not this\n\nrun one \\\n# nor this\n\n  two \\  \n three # but this\nENV A=b\r\n"
    assert names(text) == [("RUN", "one   two  three # but this"), ("ENV", "A=b")]
    assert names("# escape=`\nFROM scratch\nRUN a `\n b \\\nRUN c") == [("RUN", "a  b \\"), ("RUN", "c")]
    assert names("# syntax=x/y:1\n#check=skip=all\nFROM scratch\nCMD x") == [("CMD", "x")]


def test_variables_are_replaced_as_a_shell_would() -> None:
    head = "FROM scratch\nENV A=one EMPTY=\n"
    for text, value in {
        "$A": "one",
        "${A}x": "onex",
        "${B:-two}": "two",
        "${EMPTY:-two}": "two",
        "${EMPTY-two}": "",
        "${A:+three}": "three",
        "${B:+three}": "",
        "${B:-${A}}": "one",
        "'$A'": "$A",
        '"$A b"': "one b",
        "\\$A": "$A",
        "a\\ b": "a b",
        "$": "$",
        "$1": "$1",
    }.items():
        assert state_of(f"{head}ENV C={text}\n").env["C"] == value, text
    assert state_of("FROM scratch\nENV KEY some words here\n").env == {"KEY": "some words here"}


def test_arguments_have_the_scope_of_their_stage() -> None:
    text = "ARG V=1\nARG TARGETARCH\nFROM scratch AS a\nARG V\nARG W=$V$V\nARG TARGETARCH\nENV V=env\nENV SAID=$V-$W-$TARGETARCH-$U\n"
    assert state_of(text).env["SAID"] == "env-11-amd64-"
    assert state_of(text, {"V": "2", "U": "unknown"}).env["SAID"] == "env-22-amd64-"
    parsed = parse("ARG I=base\nFROM x/$I:${T:-3} AS Build\nFROM build\n", {"I": "other"}, PLATFORM)
    assert [(stage.name, stage.base) for stage in parsed.stages] == [("build", "x/other:3"), ("", "build")]


def test_only_the_stages_that_are_needed_are_built() -> None:
    text = (
        "FROM scratch AS a\nFROM scratch AS b\nFROM a AS c\nCOPY --from=b / /\n"
        "FROM scratch AS d\nRUN --mount=from=c,target=/x true\nFROM scratch\n"
    )
    parsed = parse(text, {}, PLATFORM)

    def needed(target: str | None) -> list[int]:
        return [stage.number for stage in parsed.needed(target)]

    assert needed(None) == [4]
    assert needed("d") == [0, 1, 2, 3]
    assert needed("2") == [0, 1, 2]
    with pytest.raises(UserError, match="no stage"):
        needed("e")


def test_heredocs_end_where_they_say() -> None:
    text = (
        "FROM scratch\nRUN <<-ONE cat <<'TWO'\n\tfirst\n\tONE\nsecond $X\nTWO\nRUN echo '<<NOT' <<<x\nCMD x\n"
    )
    run, other, _ = parse(text, {}, PLATFORM).stages[0].instructions
    assert [(doc.name, doc.text, doc.expands) for doc in run.heredocs] == [
        ("ONE", "first\n", True),
        ("TWO", "second $X\n", False),
    ]
    assert other.heredocs == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "RUN true\n",
        "FROM\n",
        "FROM a b\n",
        "FROM a AS\n",
        "FROM a AS 1\n",
        "FROM a AS b\nFROM c AS B\n",
        "FROM $NOTHING\n",
        "FROM --platform=windows/amd64 a\n",
        "FROM a\nRUN\n",
        "FROM a\nRUN <<EOF\nx\n",
        'FROM a\nENV A="b\n',
        "FROM a\nENV A=${B\n",
        "FROM a\nENV A=${B/x/y}\n",
        "FROM a\nENV A=${B:?needed}\n",
        "FROM a\nENV 1=2\n",
        "FROM a\nARG 1=2\n",
        "FROM a\nSHELL sh\n",
        "FROM a\nCOPY --chmod=u+x a b\n",
        "# escape=x\nFROM a\n",
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(UserError) as refused:
        state_of(text)
    assert refused.value.code == "bad_dockerfile"
    assert "\n" not in refused.value.message


def test_variables_that_double_each_time_are_stopped() -> None:
    lines = "".join(f"ENV A{n + 1}=$A{n}$A{n}\n" for n in range(64))
    with pytest.raises(UserError, match="expand"):
        state_of(f"FROM scratch\nENV A0=xxxxxxxx\n{lines}")
    nested = "${A:-" * 400 + "}" * 400
    with pytest.raises(UserError):
        state_of(f"FROM scratch\nENV B={nested}\n")


def test_reading_takes_time_in_proportion_to_the_text() -> None:
    def took(text: str) -> float:
        begun = time.process_time()
        parse(text, {}, PLATFORM)
        return time.process_time() - begun

    for piece in ("RUN <<A" + "x" * 60 + "\n", "ENV A=b \\\n", "RUN " + "'<<" * 20 + "'\n", "# c\n"):
        made = [f"FROM a\n{piece * n}RUN x" for n in (400, 1_600)]
        try:
            small, large = (min(took(text) for _ in range(3)) for text in made)
        except UserError:
            continue
        assert large < 16 * max(small, 0.001), piece


@given(st.text(max_size=300), st.text(alphabet="FROM RUNCPYADE \\\n$<{}\"'#=-:", max_size=300))
def test_any_text_is_parsed_or_refused(one: str, other: str) -> None:
    for text in (
        one,
        f"FROM scratch\n{one}",
        f"FROM scratch\nRUN {other}",
        f"FROM scratch\nENV A={other}",
        other,
    ):
        try:
            state_of(text)
        except UserError as error:
            assert error.code == "bad_dockerfile"


def test_a_json_list_is_the_exec_form() -> None:
    assert exec_form('["a", "b c"]') == ("a", "b c")
    for text in ("[a]", "[1]", '["a"', "a", "[" * 100_000):
        assert exec_form(text) is None


@pytest.mark.parametrize(
    "name",
    [
        "x",
        "a/b",
        "a/b:1",
        "reg.example/x",
        "reg.example:5000/a/b_c:t.1",
        f"x:1@sha256:{'0' * 64}",
        "docker:24",
    ],
)
def test_names_of_registries_are_taken(name: str) -> None:
    assert registry_name(name) == registry_name(f"docker://{name}") == f"docker://{name}"
    assert registry_host(name) == (name.partition("/")[0] if name.startswith("reg.") else None)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "a.txt",
        "b.txt",
        "src/c.txt",
        "src/deep/d.log",
        "node_modules/x/y.js",
        "keep/z.log",
        "odd[1].txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def copied(tree: Path, source: str, ignore: str = "") -> list[str]:
    of = Tree(tree, "the context", ignore)
    found = [member for name in of.find(source) for member in of.members(name, "/t")]
    return sorted(os.fsdecode(member.path)[len(str(tree)) + 1 :] for member in found if member.size)


def test_sources_are_patterns_within_the_context(tree: Path) -> None:
    assert copied(tree, "*.txt") == ["a.txt", "b.txt", "odd[1].txt"]
    assert copied(tree, "[ab].txt") == ["a.txt", "b.txt"]
    assert copied(tree, "odd[[]1].txt") == ["odd[1].txt"]
    assert copied(tree, "?.txt") == ["a.txt", "b.txt"]
    assert copied(tree, "s*/d*") == ["src/deep/d.log"]
    assert copied(tree, "../../src/../a.txt") == ["a.txt"]
    assert copied(tree, "/src") == ["src/c.txt", "src/deep/d.log"]
    assert copied(tree, "nothing*") == []


def test_ignored_files_are_left_out_and_taken_back_in(tree: Path) -> None:
    ignore = "# comment\nnode_modules\n**/*.log\n!keep/*.log\n\n./a.txt\n"
    assert copied(tree, ".", ignore) == ["b.txt", "keep/z.log", "odd[1].txt", "src/c.txt"]
    assert copied(tree, "node_modules/x/y.js", ignore) == []
    assert copied(tree, ".", "*\n!src\n") == ["src/c.txt", "src/deep/d.log"]
    assert copied(tree, ".", "a*a*a*a*a*a*a*a*a*a*b\n" * 100) == copied(tree, ".")


def test_names_that_are_not_text_are_matched_like_others(tree: Path) -> None:
    """Git keeps any bytes: such a name must neither end the build nor hide from a pattern."""
    (tree / os.fsdecode(b"caf\xe9.log")).write_text("x")
    (tree / os.fsdecode(b"caf\xe9.md")).write_text("x")
    assert copied(tree, "caf*.md") == [os.fsdecode(b"caf\xe9.md")]
    kept = copied(tree, ".", os.fsdecode(b"# \xff\n**/*.log\n\xe9*\n"))
    assert os.fsdecode(b"caf\xe9.md") in kept and os.fsdecode(b"caf\xe9.log") not in kept


def test_links_in_circles_do_not_multiply_what_a_pattern_finds(tree: Path) -> None:
    """Twelve links that lead nowhere else would be 12**20 names."""
    for number in range(12):
        (tree / f"link{number}").symlink_to(".")
    assert copied(tree, "*/" * 20 + "a.txt") == ["a.txt"]
    with pytest.raises(UserError, match="more than 5 names"):
        Tree(tree, "the context", entries=5).find("*")


@pytest.mark.parametrize("line", ["RUN " + "--mount=type=tmpfs,target=/a " * 65 + "true", "RUN true\n" * 501])
def test_what_a_file_may_ask_for_is_bounded(line: str) -> None:
    with pytest.raises(UserError, match=r"than 64 mounts|over 500 instructions"):
        parse(f"FROM scratch\n{line}\n", {}, PLATFORM)


def test_a_dockerignore_is_read_up_to_a_limit(tree: Path) -> None:
    """It may be a link to the largest file of the repository."""
    with (tree / "huge").open("wb") as file:
        file.truncate(8 << 40)
    (tree / ".dockerignore").symlink_to("huge")
    assert len(ignore_text(tree, "Dockerfile")) == 1_048_576


def test_the_variables_of_a_build_are_bounded_together() -> None:
    """Each may hold others many times, and every step is named by all of them."""
    lines = ["FROM scratch", f"ENV A={'x' * 1_000}", *(f"ENV A{number}={'$A' * 60}" for number in range(50))]
    parsed = parse("\n".join(lines), {}, {})
    state = State()
    with pytest.raises(UserError, match="hold more than") as refused:
        for each in parsed.stages[0].instructions:
            state = after(state, each, {}, {})
    assert refused.value.code == "bad_dockerfile"
