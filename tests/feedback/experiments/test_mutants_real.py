"""Mutants of tests in other languages, run with their own runners: each must fail, and the file must still compile."""

import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.conftest import PATH
from tests.feedback.experiments import forms
from tests.whole.real.conftest import TEMPLATE, real_templates

from cloister.core.computer import shell
from cloister.core.ids import new_owner_id
from cloister.feedback.experiments.mutants import Edit, Mutants, apply, mutants
from cloister.sandbox.api import Sandbox, SandboxSpec
from cloister.sandbox.container.host import ContainerHost
from cloister.sandbox.liveness import Owners

__all__ = ["real_templates"]
TESTIFY = (Path(__file__).parent / "testify.go").read_text()
JUNIT = r"""jars=$(printf '/usr/share/java/%s.jar:' junit-jupiter-{api,engine} opentest4j apiguardian-api picocli \
junit-platform-{commons,console,engine,launcher,reporting} opentest4j-reporting-{events,schema})
rm -rf out && javac -nowarn -proc:none -d out -cp "$jars" shop/*.java && java -ea -cp "out:$jars" \
org.junit.platform.console.ConsoleLauncher --disable-banner --disable-ansi-colors --details=tree -c shop.ShopTest"""
PASSED = ("✓", "✔", "undefined", "PASS", "ok", "[OK]")
"""`undefined`: as an old mocha writes it without a terminal."""


@dataclass(frozen=True)
class Suite:
    """A file with one honest assertion in each test, and how to run it."""

    path: str
    prefix: str
    """What reports write before the name of a test."""
    names: tuple[str, ...]
    text: str
    command: str
    verdict: str
    """A pattern of a line with the name and the verdict of a test."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])


def _of(lines: str, test: str, name: str = "s{}") -> tuple[tuple[str, ...], str]:
    """A test for each line."""
    statements = [line.replace("\\n", "\n").replace("\\t", "\t") for line in lines.splitlines()]
    names = tuple(name.format(index) for index in range(len(statements)))
    texts = (
        test.replace("NAME", one).replace("STATEMENT", said)
        for one, said in zip(names, statements, strict=True)
    )
    return names, "".join(texts)


def _script(lines: str, head: str, path: str, prefix: str, command: str) -> Suite:
    names, text = _of(lines, "it('NAME', async () => {\n  STATEMENT\n})\n")
    body = f"{head}{forms.SCRIPT_HEAD}describe('a', () => {{\n{text}}})\n"
    package = {"package.json": '{"name": "shop"}'}
    return Suite(
        path,
        prefix,
        names,
        body,
        command,
        r"^\s*(?P<verdict>✓|✔|✕|undefined|\d+\)) (?P<name>s\d+)\b",
        package,
    )


def _suites() -> dict[str, Suite]:
    go_names, go = _of(forms.GO, "func NAME(t *testing.T) {\n\tSTATEMENT\n}\n", "TestS{}")
    rust_names, rust = _of(forms.RUST, "    #[test]\n    fn NAME() {\n    STATEMENT\n    }\n")
    tape_names, tape = _of(forms.TAPE, "test('NAME', (t) => {\n  STATEMENT\n  t.end()\n})\n")
    c_names, c = _of(forms.C, "static int NAME(void) {\n    STATEMENT\n    return 0;\n}\n")
    c_main = f"""int main(int n, char **v) {{
    int (*all[])(void) = {{{", ".join(c_names)}}};
    return all[atoi(v[1])]() || failed;
}}
"""
    java_names, java = _of(forms.JAVA, "    @Test void NAME() {\n        STATEMENT\n    }\n")
    mocha = "mocha -t 500 --reporter spec"
    return {
        "jest": _script(
            forms.JEST, forms.JEST_HEAD, "forms.test.js", "forms.test.js::a > ", "jest --verbose -i 2>&1"
        ),
        "chai": _script(forms.CHAI, forms.CHAI_HEAD, "chai.js", "a ", f"{mocha} chai.js"),
        "node": _script(forms.NODE, forms.NODE_HEAD, "assert.js", "assert.js::a > ", f"{mocha} assert.js"),
        "tape": Suite(
            "tape.js", "", tape_names, f"const test = require('tape')\n{forms.SCRIPT_HEAD}{tape}",
            "node tape.js | awk '/^# s/ {if (n) print n, v; n = $2; v = \"ok\"} /^not ok/ {v = \"FAILED\"} END {print n, v}'",
            r"^(?P<name>s\d+) (?P<verdict>\w+)",
        ),
        "go": Suite(
            "shop/shop_test.go", "example.com/go/shop::", go_names, forms.GO_HEAD + go,
            "go test -v ./shop", r"^--- (?P<verdict>PASS|FAIL): (?P<name>TestS\d+)\b",
            {
                "go.mod": "module example.com/go\n\ngo 1.19\n",
                "shop/assert/a.go": TESTIFY.replace("PKG", "assert").replace("FAIL", "Errorf"),
                "shop/require/a.go": TESTIFY.replace("PKG", "require").replace("FAIL", "Fatalf"),
            },
        ),
        "rust": Suite(
            "src/lib.rs", "tests::", (*rust_names, "panics", "panics_with", "result"),
            f"{forms.RUST_HEAD}mod tests {{\n    use super::*;\n{rust}{forms.RUST_TAIL}}}\n",
            "cargo test --offline --lib", r"^test tests::(?P<name>\w+)(?: - should panic)? \.\.\. (?P<verdict>\w+)",
            {"Cargo.toml": '[package]\nname = "shop"\nversion = "0.1.0"\nedition = "2021"\n'},
        ),
        "c": Suite(
            "forms.c", "forms.c::", c_names, forms.C_HEAD + c + c_main,
            f"gcc -o forms forms.c && for i in {{0..{len(c_names) - 1}}}; do "
            "{ ./forms $i && echo s$i ok || echo s$i FAILED; } 2>&1 | tail -n 1; done",
            r"^(?P<name>s\d+) (?P<verdict>\w+)",
        ),
        "java": Suite(
            "shop/ShopTest.java", "shop.ShopTest::", java_names, forms.JAVA_HEAD + java + "}\n", JUNIT,
            r"(?P<name>s\d+)\(\) (?P<verdict>✔|✘|\[OK\]|\[X\])", {"shop/Subject.java": forms.JAVA_SUBJECT},
        ),
    }  # fmt: skip


SUITES = _suites()


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def sandbox(
    warm_dir: Path, real_templates: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Sandbox]:
    data = tmp_path_factory.mktemp("mutants") / "data"
    data.mkdir(mode=0o700)
    for name in ("programs", "runtimes.json", "store.btrfs"):
        if (warm_dir / name).exists():
            (data / name).symlink_to(warm_dir / name)
    (data / "templates").symlink_to(real_templates)
    owner = new_owner_id()
    with Owners(data / "owners").hold(owner):
        host = ContainerHost(data, owner, None, PATH)
        async with host.open(SandboxSpec(template=TEMPLATE)) as opened:
            yield opened
        await host.close()


async def _run(sandbox: Sandbox, name: str, text: str) -> dict[str, str]:
    """How each test of a suite went."""
    suite, folder = SUITES[name], f"/work/{name}"
    for path, content in {**suite.files, suite.path: text}.items():
        await sandbox.write(f"{folder}/{path}", content.encode())
    command = f"cd {folder} && NODE_PATH=/usr/share/nodejs HOME=/tmp {suite.command}"
    done = await sandbox.run(shell(command))
    out = done.out.decode(errors="replace")
    found: dict[str, str] = {}
    for line in re.finditer(suite.verdict, out, re.MULTILINE):
        found.setdefault(line["name"], "passed" if line["verdict"] in PASSED else "failed")
    assert found, f"{out[-3_000:]}\n{done.err.decode(errors='replace')[-3_000:]}"
    return found


def _made(name: str) -> dict[str, Mutants]:
    suite = SUITES[name]
    made = mutants(suite.path, suite.text, [suite.prefix + test for test in suite.names])
    return {test.removeprefix(suite.prefix): one for test, one in made.items()}


def _alone(made: Mapping[str, Mutants]) -> dict[str, tuple[Edit, Edit]]:
    """The tests whose only assertion no other test shares."""
    starts = [one.edits[0].start for one in made.values() if one.edits]
    return {
        name: (one.edits[0], one.reached[0])
        for name, one in made.items()
        if len(one.edits) == 1 and starts.count(one.edits[0].start) == 1
    }


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.anyio
async def test_each_mutant_and_each_failure_in_its_place_fails_its_test(sandbox: Sandbox, name: str) -> None:
    text, made = SUITES[name].text, _made(name)
    assert {test for test in SUITES[name].names if not made[test].edits} == set()
    before = await _run(sandbox, name, text)
    assert before == dict.fromkeys(SUITES[name].names, "passed")
    alone = _alone(made)
    assert len(alone) >= len(before) - 3
    for which in (0, 1):
        after = await _run(sandbox, name, apply(text, [edits[which] for edits in alone.values()]))
        survived = {test: made[test].edits[0].was for test in alone if after.get(test) != "failed"}
        assert survived == {}


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.anyio
async def test_a_failure_at_the_end_fails_each_test(sandbox: Sandbox, name: str) -> None:
    ends = [one.end for one in _made(name).values() if one.end]
    after = await _run(sandbox, name, apply(SUITES[name].text, ends))
    assert after == dict.fromkeys(SUITES[name].names, "failed")


@pytest.mark.parametrize("name", ["jest", "go", "rust"])
@pytest.mark.anyio
async def test_a_mutant_of_a_helper_fails_the_tests_that_call_it(sandbox: Sandbox, name: str) -> None:
    made = _made(name)
    callers = [test for test in made if test not in _alone(made) and len(made[test].edits) == 1]
    assert len(callers) == 2
    after = await _run(sandbox, name, apply(SUITES[name].text, made[callers[0]].edits))
    assert {test for test, verdict in after.items() if verdict == "failed"} == set(callers)
