"""Hostile listings: detection ends quickly, never raises, and says what it left out."""

import pytest

from cloister.environment.detect import detect
from cloister.environment.documents import Unreadable, read_toml, read_yaml
from cloister.environment.listing import FILES, TEXT_CHARS, collect, wanted

MANIFESTS = (
    *(
        "pyproject.toml",
        "setup.py",
        "setup.cfg",
        "tox.ini",
        "noxfile.py",
        "Pipfile",
        "requirements.txt",
        ".python-version",
    ),
    *(
        "package.json",
        ".nvmrc",
        "pnpm-lock.yaml",
        "yarn.lock",
        "go.mod",
        "go.work",
        "Cargo.toml",
        "Cargo.lock",
    ),
    *(
        "rust-toolchain",
        "pom.xml",
        "build.gradle",
        "CMakeLists.txt",
        "meson.build",
        "configure.ac",
        "Gemfile",
    ),
    *("composer.json", "mix.exs", ".tool-versions", "mise.toml", ".sdkmanrc", "Dockerfile", "compose.yaml"),
    *(".devcontainer/devcontainer.json", ".github/workflows/test.yml", ".cloister/config.toml"),
)
NESTED = (
    "[" * 60_000,
    "{" * 60_000,
    "a: " * 20_000,
    "- " * 60_000,
    '{"a":' * 40_000,
    "a = [" * 40_000,
    "(" * 60_000,
)
STRANGE = (
    *(
        "\0",
        "\ufeff",
        "\ud800",
        "\x1b[2J",
        "%",
        "*x",
        "&a [*a, *a]",
        "<<: *a",
        "---\n...\n---",
        "!!python/object:os.system [x]",
    ),
    *(
        "[tool]\nx = 1\n[tool]",
        '{"engines": 3, "scripts": [], "packageManager": {}, "workspaces": 1}',
        "version: 3\nservices: 3",
    ),
    *(
        '[project]\nname = 3\nrequires-python = []\ndependencies = "x"',
        "[package]\nrust-version = 3",
        "services:\n  a: [1]\n  b: x",
    ),
    "jobs:\n  a:\n    services:\n      x: {image: [], ports: {}, env: 3}\n",
)


@pytest.mark.parametrize("text", [*NESTED, *STRANGE, "", "\n" * 1_000, "x" * TEXT_CHARS])
def test_no_text_makes_detection_raise(text: str) -> None:
    files = dict.fromkeys(MANIFESTS, text)
    plan = detect(collect(files, files.get))
    assert all(len(note) < 600 for note in plan.notes)


@pytest.mark.parametrize("name", ["pyproject.toml", "package.json", "compose.yaml"])
def test_a_manifest_that_cannot_be_parsed_is_one_note(name: str) -> None:
    files = {name: "[[[{", "requirements.txt": "redis\n"}
    [note] = detect(collect(files, files.get)).notes
    assert note == f"{name} cannot be parsed, so it is not used"


def test_a_manifest_of_ten_megabytes_is_not_read() -> None:
    files = {"package.json": '{"a": "' + "x" * 10_000_000 + '"}'}
    listing = collect(files, files.get)
    assert len(listing.texts["package.json"]) == TEXT_CHARS + 1
    assert any("is longer than" in note for note in detect(listing).notes)


def test_of_a_hundred_thousand_files_the_nearest_are_kept() -> None:
    deep = [f"a/b/c/d/e/{number}.py" for number in range(100_000)]
    listing = collect([*deep, "go.mod", "x" * 5_000], {"go.mod": "module a\ngo 1.22\n"}.get)
    assert len(listing.files) <= FILES
    plan = detect(listing)
    assert [tool.name for tool in plan.toolchains] == ["go"]
    assert any("files far from the root are not considered" in note for note in plan.notes)


def test_thousands_of_projects_are_bounded() -> None:
    files = {f"p{number}/package.json": '{"scripts": {"test": "x"}}' for number in range(5_000)}
    listing = collect(files, files.get)
    assert len(listing.texts) <= 120
    assert len(detect(listing).steps) < 40


def test_manifests_of_dependencies_are_not_read() -> None:
    names = ["node_modules/a/package.json", "vendor/x/go.mod", "a/b/c/d/package.json", "package.json"]
    assert wanted(names) == ["package.json"]


@pytest.mark.parametrize(
    "text", ["[" * 50_000, "a:\n" + "".join(f"{' ' * n}b:\n" for n in range(1, 300)), "- " * 50_000]
)
def test_deep_yaml_is_refused_and_does_not_end_the_process(text: str) -> None:
    with pytest.raises(Unreadable):
        read_yaml(text)


def test_yaml_aliases_do_not_multiply() -> None:
    lines = ["a0: &a0 {" + ", ".join(f"k{n}: v" for n in range(50)) + "}"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 50)}]" for n in range(1, 12)]
    assert isinstance(read_yaml("\n".join(lines)), dict)
    merged = [f"m{n}:\n  <<: *a0\n  x{n}: 1" for n in range(500)]
    with pytest.raises(Unreadable):
        read_yaml("\n".join((lines[0], *merged)))


def test_yaml_of_ordinary_files_is_read() -> None:
    text = "x: &d {a: 1}\ny:\n  <<: *d\n  b: 'two'\nz: [1, *d]\n"
    assert read_yaml(text) == {"x": {"a": "1"}, "y": {"a": "1", "b": "two"}, "z": ["1", {"a": "1"}]}


@pytest.mark.parametrize("text", ["a." * 100_000, "x = {" + "a." * 1_000 + "b = 1}", "''." * 1_000])
def test_keys_of_many_parts_are_refused_before_they_take_quadratic_time(text: str) -> None:
    with pytest.raises(Unreadable, match="too many parts"):
        read_toml(text)
