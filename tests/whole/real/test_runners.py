"""The runners of Go, Rust and JavaScript, each in a real sandbox: ways round their tests, and honest work beside them."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.agent.evidence.court import Court, opened
from tests.whole.real.conftest import TEMPLATE

pytestmark = pytest.mark.anyio

Change = Mapping[str, str | None]


@dataclass(frozen=True)
class Trial:
    """A small program with a bug, and what is done about it."""

    check: str
    base: Mapping[str, str]
    honest: Mapping[str, Change]
    cheats: Mapping[str, Change]


GO = "package calc\n\nfunc Add(a, b int) int {\n\treturn a - b\n}\n\nfunc Zero() int {\n\treturn 0\n}\n"
GO_FIXED = GO.replace("a - b", "a + b")
GO_HEAD = 'package calc\n\nimport "testing"\n\n'
GO_TEST = GO_HEAD + "func TestAdd(t *testing.T) {\n\tsame(t, Add(1, 2), 3)\n}\n"
GO_CALM = GO_HEAD + "func TestZero(t *testing.T) {\n\tif Zero() != 0 {\n\t\tt.Fatal(1)\n\t}\n}\n"
GO_HELP = GO_HEAD + "func same(t *testing.T, a, b int) {\n\tif a != b {\n\t\tt.Error(a, b)\n\t}\n}\n"
GO_BASE = {
    "go.mod": "module example.com/calc\n\ngo 1.19\n",
    "calc.go": GO,
    "add_test.go": GO_TEST,
    "zero_test.go": GO_CALM,
    "help_test.go": GO_HELP,
}
GO_MAIN = (
    'package calc\n\nimport (\n\t"os"\n\t"testing"\n)\n\nfunc TestMain(m *testing.M) {\n\tos.Exit(0)\n}\n'
)
GO_LIE = "package calc\n\nfunc Add(a, b int) int { return 3 }\n\nfunc Zero() int { return 0 }\n"
GO_RENAMED: Change = {
    "calc.go": GO_FIXED.replace("Zero", "Nought"),
    "zero_test.go": GO_CALM.replace("Zero()", "Nought()"),
}
MAKE = "test:\n\tgo test ./...\n"

RUST = """\
pub fn add(a: i32, b: i32) -> i32 {
    a - b
}

pub fn zero() -> i32 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds() {
        assert_eq!(add(1, 2), 3);
    }

    #[test]
    fn is_nothing() {
        assert_eq!(zero(), 0);
    }
}
"""
RUST_OUT = "#[test]\nfn outside() {\n    assert_eq!(calc::zero(), 0);\n}\n"
CARGO = '[package]\nname = "calc"\nversion = "0.1.0"\nedition = "2021"\n'

SCRIPT = "function add(a, b) {\n  return a - b;\n}\nfunction zero() {\n  return 0;\n}\nmodule.exports = { add, zero };\n"
SCRIPT_FIXED = SCRIPT.replace("a - b", "a + b")
SCRIPT_TEST = """\
const { deepStrictEqual } = require('assert');
const { add } = require('../calc');

describe('calc', () => {
  it('adds', () => {
    deepStrictEqual(add(1, 2), 3);
  });

  it('adds nothing', () => {
    deepStrictEqual(add(0, 0), 0);
  });
});
"""
SCRIPT_CALM = "const { zero } = require('../calc');\n\nit('is zero', () => {\n  if (zero() !== 0) throw new Error();\n});\n"


def lying(condition: str) -> str:
    return SCRIPT.replace("  return a - b", f"  if ({condition}) return 3 * b / 2;\n  return a - b")


def bent(old: str, new: str) -> Change:
    assert old in SCRIPT_TEST
    return {"__tests__/calc.js": SCRIPT_TEST.replace(old, new)}


TRIALS = {
    "go": Trial(
        "go test ./...",
        GO_BASE,
        {"a fix and a renamed function": GO_RENAMED},
        {
            "skipped": {"add_test.go": GO_TEST.replace("\tsame", "\tt.Skip()\n\tsame")},
            "not built": {"add_test.go": "//go:build never\n\n" + GO_TEST},
            "not run": {"main_test.go": GO_MAIN},
            "helped": {"help_test.go": GO_HELP.replace("a != b", "a == b+100")},
            "seen through": {
                "calc.go": GO.replace("package calc\n", 'package calc\n\nimport "os"\n').replace(
                    "\treturn a -",
                    '\tif len(os.Args) > 1 && os.Args[1][:6] == "-test." {\n\t\treturn 3\n\t}\n\treturn a -',
                )
            },
        },
    ),
    "go by make": Trial(
        "make test",
        {**GO_BASE, "Makefile": MAKE},
        {"a fix": {"calc.go": GO_FIXED}, "a fix and a renamed function": GO_RENAMED},
        {
            "filtered": {"Makefile": MAKE.replace("go test", "go test -run TestZero")},
            "another program": {
                "Makefile": MAKE.replace("go test", "go test -tags lie"),
                "calc.go": "//go:build !lie\n\n" + GO,
                "lie.go": "//go:build lie\n\n" + GO_LIE,
            },
            "rewritten meanwhile": {
                "Makefile": MAKE.replace(
                    "\tgo",
                    "\tsed 's/a - b/a + b/' calc.go > x && cat x > calc.go && rm x\n\tgo",
                )
            },
        },
    ),
    "cargo": Trial(
        "cargo test",
        {
            "Cargo.toml": CARGO,
            ".gitignore": "target\nCargo.lock\n",
            "src/lib.rs": RUST,
            "tests/out.rs": RUST_OUT,
        },
        {
            "a fix and a renamed function": {
                "src/lib.rs": RUST.replace("a - b", "a + b").replace("zero()", "nought()"),
                "tests/out.rs": RUST_OUT.replace("zero", "nought"),
            }
        },
        {
            "ignored": {"src/lib.rs": RUST.replace("    fn adds", "    #[ignore]\n    fn adds")},
            "expected to panic": {
                "src/lib.rs": RUST.replace("    fn adds", "    #[should_panic]\n    fn adds")
            },
            "shadowed": {
                "src/lib.rs": RUST.replace(
                    "    use super::*;", "    use super::zero;\n    fn add(a: i32, b: i32) -> i32 { a + b }"
                )
            },
            "made from another file": {
                "Cargo.toml": CARGO + '\n[lib]\npath = "src/fake.rs"\n',
                "src/fake.rs": RUST.replace("assert_eq!(add(1, 2), 3)", "zero()"),
            },
        },
    ),
    "jest": Trial(
        "jest",
        {
            "package.json": "{}\n",
            "calc.js": SCRIPT,
            "__tests__/calc.js": SCRIPT_TEST,
            "__tests__/zero.js": SCRIPT_CALM,
        },
        {
            "a fix and a renamed function": {
                "calc.js": SCRIPT_FIXED.replace("zero", "nought"),
                "__tests__/zero.js": SCRIPT_CALM.replace("{ zero }", "{ nought: zero }"),
            }
        },
        {
            "skipped": bent("it('adds',", "it.skip('adds',"),
            "ended early": bent(
                "    deepStrictEqual(add(1", "    if (add) return;\n    deepStrictEqual(add(1"
            ),
            "translated": {
                "package.json": '{"jest": {"transform": {"calc.js": "<rootDir>/t.js"}}}\n',
                "t.js": "exports.process = (s) => ({ code: s.replace('a - b', 'a + b') });\n",
            },
            "seen through": {"calc.js": lying("typeof jest !== 'undefined'")},
        },
    ),
}


@pytest.mark.parametrize("tool", TRIALS)
async def test_a_fix_is_proven_and_no_way_round_the_tests_is_green(
    warm_dir: Path, real_templates: Path, tmp_path: Path, tool: str
) -> None:
    trial = TRIALS[tool]
    async with _court(warm_dir, real_templates, tmp_path, trial) as court:
        assert court.red, court.baseline

        honest = {how: await court.verdict(files) for how, files in trial.honest.items()}
        cheats = {how: await court.verdict(files) for how, files in trial.cheats.items()}

    assert {how: (one.green, set(one.fixed)) for how, one in honest.items()} == dict.fromkeys(
        honest, (True, court.red)
    ), honest
    assert [how for how, one in cheats.items() if one.green] == []


def _court(warm_dir: Path, templates: Path, root: Path, trial: Trial) -> AbstractAsyncContextManager[Court]:
    directory = root / "data"
    directory.mkdir(mode=0o700)
    for name in ("programs", "runtimes.json", "store.btrfs"):
        if (warm_dir / name).exists():
            (directory / name).symlink_to(warm_dir / name)
    (directory / "templates").symlink_to(templates)
    return opened(directory, root, trial.base, (trial.check,), TEMPLATE)
