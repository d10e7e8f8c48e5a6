"""Small repositories of the usual kinds, written here: one function in each, and the test that shows when it is broken."""

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest
from tests.conftest import CACHE

from cloister.egress.packages import derive

DATES = {"GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z"}


class Sample(NamedTuple):
    """A repository, and the part of a line that is changed to plant a bug."""

    name: str
    kind: str
    registries: tuple[str, ...]
    """The sets that set-up needs; nothing else of the network."""
    files: dict[str, str]
    file: str
    good: str
    bad: str

    @property
    def broken(self) -> dict[str, str]:
        """The files with the bug."""
        return {**self.files, self.file: self.files[self.file].replace(self.good, self.bad)}


def registry(name: str) -> None:
    found = anyio.run(derive, name)
    if found.problem or not found.hosts:
        pytest.skip(f"the set {name} means nothing here: {found.problem}")


def project(name: str, **files: str) -> Path:
    """A repository that is at the same place in every session, so that its environment is made once on this machine."""
    at = CACHE / "environments" / name
    if not (at / ".git").exists():
        at.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            (at / path).parent.mkdir(parents=True, exist_ok=True)
            (at / path).write_text(text)
        git = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        for args in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
            subprocess.run([*git, *args], cwd=at, check=True, env={"PATH": "/usr/bin:/bin", **DATES})
    return at


def clean(repo: Path) -> None:
    """Remove the branches that runs delivered. Tests share a repository, so another one may be first."""
    listed = subprocess.run(
        ["git", "branch", "--list", "cloister/*"], cwd=repo, capture_output=True, text=True
    )
    for branch in listed.stdout.split():
        subprocess.run(["git", "branch", "-qD", branch], cwd=repo, check=False)


def _json(**fields: object) -> str:
    return json.dumps(fields, indent=2) + "\n"


_PY_TEST = "from {0} import total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n\n\ndef test_nothing():\n    assert total([]) == 0\n"
_PY_SUM = "import inflection\n\n\ndef total(values):\n    return sum(values)\n\n\ndef name(word):\n    return inflection.pluralize(word)\n"
_NODE_TEST = (
    "const { test } = require('node:test');\nconst assert = require('node:assert');\nconst { sum } = require('..');\n\n"
    "test('adds', () => assert.equal(sum(1, 2), 3));\ntest('adds nothing', () => assert.equal(sum(4, 0), 4));\n"
)
_VITEST = (
    "import { expect, test } from 'vitest';\nimport { sum } from '../src/sum';\n\n"
    "test('adds', () => expect(sum(1, 2)).toBe(3));\ntest('adds nothing', () => expect(sum(4, 0)).toBe(4));\n"
)
_TS_SUM = "export function sum(a: number, b: number): number {\n  return a + b;\n}\n"
_GO_TEST = (
    'package {0}\n\nimport "testing"\n\nfunc TestSum(t *testing.T) {{\n\tif Sum(1, 2) != 3 {{\n\t\tt.Fatal(Sum(1, 2))\n\t}}\n}}\n\n'
    "func TestNothing(t *testing.T) {{\n\tif Sum(4, 0) != 4 {{\n\t\tt.Fatal(Sum(4, 0))\n\t}}\n}}\n"
)
_RUST_SUM = (
    "pub fn sum(a: i64, b: i64) -> i64 {\n    a + b\n}\n\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn adds() {\n"
    "        assert_eq!(super::sum(1, 2), 3);\n    }\n\n    #[test]\n    fn adds_nothing() {\n        assert_eq!(super::sum(4, 0), 4);\n    }\n}\n"
)


NPM = Sample(
    "npm",
    "npm, node:test",
    ("pypi", "npm"),
    {
        "package.json": json.dumps(
            {"name": "sum", "scripts": {"test": "node --test"}, "dependencies": {"is-number": "7.0.0"}}
        ),
        ".gitignore": "node_modules/\n",
        "sum.js": "const is = require('is-number');\nexports.sum = (a, b) => is(a) ? a + b : 0;\n",
        "test/sum.test.js": "const {test} = require('node:test');\nconst assert = require('assert');\n"
        "test('adds', () => assert.equal(require('../sum').sum(1, 2), 3));\n",
    },
    "sum.js",
    "a + b",
    "a - b",
)

SINGLE = (
    Sample(
        "requirements",
        "Python, requirements.txt",
        ("pypi",),
        {"requirements.txt": "inflection\n", "app.py": _PY_SUM, "test_app.py": _PY_TEST.format("app")},
        "app.py",
        "return sum(values)",
        "return sum(values) + len(values)",
    ),
    Sample(
        "python-3.13",
        "Python newer than Debian's",
        ("pypi", "debian"),
        {
            "pyproject.toml": '[project]\nname = "app"\nversion = "1"\nrequires-python = ">=3.12"\ndependencies = ["inflection"]\n',
            "app.py": f"type Number = int | float\n\n\n{_PY_SUM}",
            "test_app.py": _PY_TEST.format("app"),
        },
        "app.py",
        "return sum(values)",
        "return sum(values) + len(values)",
    ),
    Sample(
        "vitest",
        "npm, vitest",
        ("pypi", "npm"),
        {
            "package.json": _json(
                name="sum",
                type="module",
                scripts={"test": "vitest run"},
                devDependencies={"vitest": "^3.0.0"},
            ),
            ".gitignore": "node_modules/\n",
            "src/sum.ts": _TS_SUM,
            "test/sum.test.ts": _VITEST,
        },
        "src/sum.ts",
        "a + b",
        "a + b + (b && 1)",
    ),
    Sample(
        "go",
        "Go module",
        ("pypi",),
        {
            "go.mod": "module example.com/sum\n\ngo 1.22\n",
            "sum.go": "package sum\n\n// Sum adds.\nfunc Sum(a, b int) int {\n\treturn a + b\n}\n",
            "sum_test.go": _GO_TEST.format("sum"),
        },
        "sum.go",
        "a + b",
        "a + b*b",
    ),
    Sample(
        "ctest",
        "CMake, CTest",
        ("debian",),
        {
            "CMakeLists.txt": "cmake_minimum_required(VERSION 3.16)\nproject(sum C)\nenable_testing()\nadd_library(sum sum.c)\n"
            "foreach(name adds nothing)\n  add_executable(${name} ${name}.c)\n  target_link_libraries(${name} sum)\n"
            "  add_test(NAME ${name} COMMAND ${name})\nendforeach()\n",
            "sum.h": "int sum(int a, int b);\n",
            "sum.c": '#include "sum.h"\n\nint sum(int a, int b) {\n    return a + b;\n}\n',
            "adds.c": '#include "sum.h"\n\nint main(void) {\n    return sum(1, 2) == 3 ? 0 : 1;\n}\n',
            "nothing.c": '#include "sum.h"\n\nint main(void) {\n    return sum(4, 0) == 4 ? 0 : 1;\n}\n',
        },
        "sum.c",
        "a + b",
        "a + b * b",
    ),
    Sample(
        "minitest",
        "Ruby, Rake and minitest",
        ("debian",),
        {
            "Rakefile": 'require "rake/testtask"\n\nRake::TestTask.new(:test) do |task|\n  task.pattern = "test/test_*.rb"\nend\n',
            "lib/sum.rb": "module Sum\n  def self.of(a, b)\n    a + b\n  end\nend\n",
            "test/test_sum.rb": 'require "minitest/autorun"\nrequire_relative "../lib/sum"\n\nclass TestSum < Minitest::Test\n'
            "  def test_adds\n    assert_equal 3, Sum.of(1, 2)\n  end\n\n  def test_nothing\n    assert_equal 4, Sum.of(4, 0)\n  end\nend\n",
        },
        "lib/sum.rb",
        "a + b",
        "a + b * b",
    ),
    Sample(
        "phpunit",
        "PHP, PHPUnit without Composer",
        ("debian",),
        {
            "phpunit.xml": '<phpunit bootstrap="src/sum.php">\n  <testsuites>\n    <testsuite name="all"><directory>tests</directory></testsuite>\n'
            "  </testsuites>\n</phpunit>\n",
            "src/sum.php": "<?php\n\nfunction sum(int $a, int $b): int\n{\n    return $a + $b;\n}\n",
            "tests/SumTest.php": "<?php\n\nuse PHPUnit\\Framework\\TestCase;\n\nfinal class SumTest extends TestCase\n{\n"
            "    public function testAdds(): void\n    {\n        $this->assertSame(3, sum(1, 2));\n    }\n\n"
            "    public function testNothing(): void\n    {\n        $this->assertSame(4, sum(4, 0));\n    }\n}\n",
        },
        "src/sum.php",
        "$a + $b",
        "$a + $b * $b",
    ),
    Sample(
        "make",
        "Makefile only",
        (),
        {
            "Makefile": "sum: sum.c\n\t$(CC) -o $@ sum.c\n\ntest: sum\n\ttest `./sum 1 2` = 3\n\ttest `./sum 4 0` = 4\n\n.PHONY: test\n",
            ".gitignore": "sum\n",
            "sum.c": "#include <stdio.h>\n#include <stdlib.h>\n\nint main(int count, char **words) {\n"
            '    if (count < 3)\n        return 2;\n    printf("%d\\n", atoi(words[1]) + atoi(words[2]));\n    return 0;\n}\n',
        },
        "sum.c",
        "atoi(words[1]) + atoi",
        "atoi(words[1]) - atoi",
    ),
)

_CORE = {
    "packages/core/index.js": "const is = require('is-number');\n\nexports.sum = (a, b) => (is(a) ? a + b : 0);\n",
    "packages/core/test/sum.test.js": _NODE_TEST,
    "packages/app/index.js": "const { sum } = require('@sample/core');\n\nexports.sum = (a, b) => sum(a, b);\n",
    "packages/app/test/app.test.js": _NODE_TEST.replace("adds", "the app adds"),
    ".gitignore": "node_modules/\n.yarn/\n.pnp.*\n",
}
_TESTED = {"test": "node --test"}


def _packages(version: str) -> dict[str, str]:
    core = _json(name="@sample/core", version="1.0.0", scripts=_TESTED, dependencies={"is-number": "7.0.0"})
    app = _json(name="@sample/app", version="1.0.0", scripts=_TESTED, dependencies={"@sample/core": version})
    return {"packages/core/package.json": core, "packages/app/package.json": app, **_CORE}


def _uv(name: str, *needs: str) -> str:
    return (
        f'[project]\nname = "{name}"\nversion = "1.0"\nrequires-python = ">=3.9"\ndependencies = {json.dumps(needs)}\n\n'
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    )


def _poetry(name: str, needs: str) -> str:
    return (
        f'[tool.poetry]\nname = "{name}"\nversion = "1.0"\ndescription = ""\nauthors = []\npackages = [{{ include = "{name}" }}]\n\n'
        f'[tool.poetry.dependencies]\npython = ">=3.9"\n{needs}\n\n'
        '[tool.poetry.group.dev.dependencies]\npytest = "*"\n\n'
        '[build-system]\nrequires = ["poetry-core"]\nbuild-backend = "poetry.core.masonry.api"\n'
    )


def _cargo(name: str, needs: str = "") -> str:
    return f'[package]\nname = "{name}"\nversion = "1.0.0"\nedition = "2021"\n\n[dependencies]\n{needs}'


_USES = "from core import total as core_total\n\n\ndef total(values):\n    return core_total(values)\n"

WORKSPACES = (
    Sample(
        "npm-workspace",
        "npm workspace",
        ("pypi", "npm"),
        {
            "package.json": _json(name="root", private=True, workspaces=["packages/*"]),
            **_packages("*"),
        },
        "packages/core/index.js",
        "a + b",
        "a + b * b",
    ),
    Sample(
        "pnpm-workspace",
        "pnpm workspace",
        ("pypi", "npm"),
        {
            "package.json": _json(name="root", private=True),
            "pnpm-workspace.yaml": "packages:\n  - packages/*\n",
            **_packages("workspace:*"),
        },
        "packages/core/index.js",
        "a + b",
        "a + b * b",
    ),
    Sample(
        "yarn-workspace",
        "yarn berry workspace",
        ("pypi", "npm"),
        {
            "package.json": _json(name="root", private=True, workspaces=["packages/*"]),
            ".yarnrc.yml": "nodeLinker: node-modules\nenableTelemetry: false\n",
            **_packages("workspace:^"),
        },
        "packages/core/index.js",
        "a + b",
        "a + b * b",
    ),
    Sample(
        "go-workspace",
        "Go workspace",
        ("pypi",),
        {
            "go.work": "go 1.22\n\nuse (\n\t./core\n\t./app\n)\n",
            "core/go.mod": "module example.com/core\n\ngo 1.22\n",
            "core/sum.go": "package core\n\n// Sum adds.\nfunc Sum(a, b int) int {\n\treturn a + b\n}\n",
            "core/sum_test.go": _GO_TEST.format("core"),
            "app/go.mod": "module example.com/app\n\ngo 1.22\n",
            "app/app.go": 'package app\n\nimport "example.com/core"\n\n// Sum adds, as the core does.\nfunc Sum(a, b int) int {\n\treturn core.Sum(a, b)\n}\n',
            "app/app_test.go": _GO_TEST.format("app"),
        },
        "core/sum.go",
        "a + b",
        "a + b*b",
    ),
    Sample(
        "cargo-workspace",
        "Cargo workspace",
        ("debian",),
        {
            "Cargo.toml": '[workspace]\nmembers = ["core", "app"]\nresolver = "2"\n',
            ".gitignore": "target/\nCargo.lock\n",
            "core/Cargo.toml": _cargo("sample-core"),
            "core/src/lib.rs": _RUST_SUM,
            "app/Cargo.toml": _cargo("sample-app", 'sample-core = { path = "../core" }\n'),
            "app/src/lib.rs": _RUST_SUM.replace("    a + b\n", "    sample_core::sum(a, b)\n"),
        },
        "core/src/lib.rs",
        "    a + b\n",
        "    a + b * b\n",
    ),
    Sample(
        "uv-workspace",
        "uv workspace",
        ("pypi",),
        {
            "pyproject.toml": '[tool.uv.workspace]\nmembers = ["packages/*"]\n',
            "packages/core/pyproject.toml": _uv("core", "inflection"),
            "packages/core/src/core/__init__.py": _PY_SUM,
            "packages/core/tests/test_core.py": _PY_TEST.format("core"),
            "packages/app/pyproject.toml": _uv("app", "core")
            + "\n[tool.uv.sources]\ncore = { workspace = true }\n",
            "packages/app/src/app/__init__.py": _USES,
            "packages/app/tests/test_app.py": _PY_TEST.format("app"),
        },
        "packages/core/src/core/__init__.py",
        "return sum(values)",
        "return sum(values) + len(values)",
    ),
    Sample(
        "poetry-monorepo",
        "Poetry, packages by path",
        ("pypi",),
        {
            "libs/core/pyproject.toml": _poetry("core", 'inflection = "*"'),
            "libs/core/core/__init__.py": _PY_SUM,
            "libs/core/tests/test_core.py": _PY_TEST.format("core"),
            "services/api/pyproject.toml": _poetry(
                "api", 'core = { path = "../../libs/core", develop = true }'
            ),
            "services/api/api/__init__.py": _USES,
            "services/api/tests/test_api.py": _PY_TEST.format("api"),
        },
        "libs/core/core/__init__.py",
        "return sum(values)",
        "return sum(values) + len(values)",
    ),
    Sample(
        "polyglot",
        "monorepo: Python, npm, Go",
        ("pypi", "npm"),
        {
            "README.md": "# A shop\n",
            "backend/requirements.txt": "inflection\n",
            "backend/shop.py": _PY_SUM,
            "backend/tests/test_shop.py": _PY_TEST.format("shop"),
            "frontend/package.json": _json(
                name="page",
                type="module",
                scripts={"test": "vitest run"},
                devDependencies={"vitest": "^3.0.0"},
            ),
            "frontend/.gitignore": "node_modules/\n",
            "frontend/src/sum.ts": _TS_SUM,
            "frontend/test/sum.test.ts": _VITEST,
            "worker/go.mod": "module example.com/worker\n\ngo 1.22\n",
            "worker/sum.go": "package worker\n\n// Sum adds.\nfunc Sum(a, b int) int {\n\treturn a + b\n}\n",
            "worker/sum_test.go": _GO_TEST.format("worker"),
        },
        "frontend/src/sum.ts",
        "a + b",
        "a + b + (b && 1)",
    ),
)
