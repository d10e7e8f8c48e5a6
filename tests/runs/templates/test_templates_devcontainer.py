"""What a devcontainer.json asks for, and what of it is refused, by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.core.errors import UserError
from cloister.runs.templates import Feature, Step, parse_devcontainer, without_comments

PLACE = ".devcontainer/devcontainer.json"


def test_comments_and_trailing_commas_are_understood_and_strings_are_left_alone() -> None:
    text = """
    // a whole line
    { /* in
       between */ "image": "example.org/x:1", // after, with "quotes" and {brackets,}
      "containerEnv": { "URL": "http://a//b/*c*/", "Q": "\\"//\\"", "E": ",}", },
      "postCreateCommand": ["a", "b",], // the end
    }  /* never closed"""
    wanted = parse_devcontainer(text, PLACE)
    assert wanted.image == "example.org/x:1"
    assert wanted.env == {"URL": "http://a//b/*c*/", "Q": '"//"', "E": ",}"}
    assert wanted.steps == (Step("postCreateCommand", ("a", "b")),)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_json_without_comments_means_the_same(value: object) -> None:
    assert json.loads(without_comments(json.dumps(value, indent=1))) == value
    assert json.loads(without_comments(json.dumps(value, ensure_ascii=False))) == value


@given(st.text(alphabet='"\\/*{}[],:\n a'))
def test_no_text_breaks_the_reader(text: str) -> None:
    without_comments(text)
    with pytest.raises(UserError):
        parse_devcontainer(text, PLACE)


def test_a_dockerfile_is_found_beside_the_file() -> None:
    wanted = parse_devcontainer(
        '{"build": {"dockerfile": "Dockerfile", "context": "..", "target": "dev", "args": {"A": "1"}},'
        ' "remoteUser": "node", "containerUser": "other"}',
        PLACE,
    )
    assert (wanted.dockerfile, wanted.context, wanted.target) == (".devcontainer/Dockerfile", ".", "dev")
    assert (wanted.args, wanted.user) == ({"A": "1"}, "node")
    assert parse_devcontainer('{"dockerFile": "D"}', ".devcontainer.json").dockerfile == "D"


def test_commands_run_in_their_order_in_every_form() -> None:
    wanted = parse_devcontainer(
        '{"image": "x", "postCreateCommand": {"one": "make", "two": ["npm", "ci"]}, "onCreateCommand": "first",'
        ' "initializeCommand": "rm -rf /", "postStartCommand": "serve", "updateContentCommand": ""}',
        PLACE,
    )
    assert wanted.steps == (
        Step("onCreateCommand", "first"),
        Step("postCreateCommand one", "make"),
        Step("postCreateCommand two", ("npm", "ci")),
    )


def test_variables_tell_nothing_of_this_machine() -> None:
    wanted = parse_devcontainer(
        '{"image": "x", "containerEnv": {"P": "/x:${containerEnv:PATH}", "H": "${localEnv:HOME}",'
        ' "D": "${localEnv:NO:usual}", "W": "${containerWorkspaceFolder}/bin"}, "remoteEnv": {"N": null},'
        ' "postCreateCommand": "echo ${containerEnv:PATH} ${localWorkspaceFolder}"}',
        PLACE,
    )
    assert wanted.env_over({"PATH": "/bin"}) == {"P": "/x:/bin", "H": "", "D": "usual", "W": "/work/bin"}
    assert wanted.steps == (Step("postCreateCommand", "echo ${PATH} /work"),)


def test_a_feature_that_is_a_plain_script_is_taken_and_any_other_refused_by_name() -> None:
    wanted = parse_devcontainer(
        '{"image": "x", "features": {"./tool": {"fast-mode": true, "version": 3}}}', PLACE
    )
    assert wanted.features == (Feature(".devcontainer/tool", {"FAST_MODE": "true", "VERSION": "3"}),)
    with pytest.raises(UserError, match=r"example.org/features/node:1 is not a script"):
        parse_devcontainer('{"image": "x", "features": {"example.org/features/node:1": {}}}', PLACE)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "either an image or a build.dockerfile"),
        ('{"image": "x", "build": {"dockerfile": "D"}}', "either an image"),
        ('{"dockerComposeFile": "c.yml", "image": "x"}', "dockerComposeFile"),
        ('{"image": "x", "mounts": ["source=/"]}', "mounts"),
        ('{"image": "x", "privileged": true}', "privileged"),
        ('{"build": {"dockerfile": "../../etc/passwd"}}', "leads out"),
        ('{"build": {"dockerfile": "/etc/passwd"}}', "leads out"),
        ('{"image": "x", "features": {"./../../x": {}}}', "leads out"),
        ('{"image": "x", "postCreateCommand": 3}', "postCreateCommand must be"),
        ('{"image": 3}', "cannot be read"),
        ("[]", "cannot be read"),
    ],
)
def test_unsupported_fields_are_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as refused:
        parse_devcontainer(text, PLACE)
    assert refused.value.code == "bad_devcontainer"


DEEP = '{"image": "a/b", "postCreateCommand": ' + '{"k": ' * 700 + '"x"' + "}" * 701
UNUSABLE = (
    (DEEP, "postCreateCommand must be"),
    ('{"image": "a/b", "containerEnv": {"A=B": "x"}}', "'A=B' is not the name"),
    ('{"image": "a/b", "remoteEnv": {"": "x"}}', "'' is not the name"),
    ('{"build": {"dockerfile": "D", "args": {"A=": "x"}}}', "'A=' is not the name"),
    ('{"image": "a/b", "containerEnv": {"A": "x\\u0000y"}}', "NUL"),
    ('{"image": "a/b", "postCreateCommand": ["x\\\\\\u0000"]}', "NUL"),
    ('{"image": "a/b", "features": {"./x": {"a": "\\u0000"}}}', "NUL"),
)


@pytest.mark.parametrize(("text", "why"), UNUSABLE)
def test_text_that_no_program_takes_is_refused_in_one_sentence(text: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        parse_devcontainer(text, ".devcontainer.json")


def test_an_escaped_backslash_before_u0000_is_text() -> None:
    text = '{"image": "a/b", "containerEnv": {"A": "\\\\u0000"}}'
    assert parse_devcontainer(text, ".devcontainer.json").env == {"A": "\\u0000"}


def test_variables_that_multiply_are_stopped() -> None:
    """An image chooses its environment, and a repository how often it is repeated."""
    image = {"BIG": "x" * 32_768}
    one = json.dumps({"image": "a/b", "containerEnv": {"A": "${containerEnv:BIG}" * 20_000}})
    many = json.dumps(
        {"image": "a/b", "containerEnv": {f"A{n}": "${containerEnv:BIG}" for n in range(5_000)}}
    )
    for text in (one, many):
        with pytest.raises(UserError, match="expand to more than"):
            parse_devcontainer(text, ".devcontainer.json").env_over(image)
    few = json.dumps({"image": "a/b", "containerEnv": {"A": "${containerEnv:BIG}" * 3}})
    assert len(parse_devcontainer(few, ".devcontainer.json").env_over(image)["A"]) == 98_304
