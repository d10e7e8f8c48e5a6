"""Canaries in JavaScript and TypeScript projects, in a real sandbox with the runners' own reports."""

from collections.abc import Mapping

import pytest
from tests.feedback.experiments.planting import Field, Project

pytestmark = pytest.mark.anyio

CALC = "function add(a, b) {\n  return a + b;\n}\nmodule.exports = { add };\n"
MODULE = "export function add(a, b) {\n  return a + b;\n}\n"
TYPED = "export function add(a: number, b: number): number {\n  return a + b;\n}\n"
STRICT = '{"compilerOptions": {"strict": true, "noUnusedLocals": true, "module": "commonjs", "target": "es2020", "types": ["node", "mocha"], "typeRoots": ["/usr/share/nodejs/@types"]}}\n'
TAPE = "var test = require('tape')\nvar add = require('..').add\n\ntest('adds', function (t) {\n  t.equal(add(1, 2), 3)\n  t.end()\n})\n"
PACKAGE = '{{"name": "calc", "scripts": {{"test": "{}"}}}}\n'

JEST = """\
const { add } = require('./calc');

describe('calc', () => {
  it('adds', () => {
    expect(add(1, 2)).toBe(3);
    expect([add(1, 2)]).toContain(3);
  });

  it('is called', () => {
    const spy = jest.fn();
    spy(1);
    expect(spy).toHaveBeenCalledWith(1);
  });
});
"""
MOCHA = """\
const assert = require('assert');
const { expect } = require('chai');
const { add } = require('../calc');

describe('calc', function () {
  it('adds', function () {
    assert.equal(add(1, 2), 3);
    expect(add(1, 2)).to.equal(3);
  });
});
"""
TYPED_TEST = """\
import * as assert from 'assert';
import { deepStrictEqual } from 'node:assert';
import { add } from '../calc';

describe('calc', () => {
  it('adds', () => {
    assert.strictEqual(add(1, 2), 3);
    deepStrictEqual([add(1, 2)], [3]);
  });
});
"""
NODE = """\
const { test } = require('node:test');
const { add } = require('../calc');
const { strictEqual } = require('node:assert');

test('adds', () => {
  strictEqual(add(1, 2), 3);
});
"""
NODE_MODULE = """\
import {
  describe,
  it,
} from 'node:test';
import assert from 'node:assert/strict';
import { add } from '../calc.mjs';

describe('calc', () => {
  it('adds', () => {
    assert.equal(add(1, 2), 3);
  });
});
"""
SUITES = {
    "jest": Project(
        "jest",
        {"calc.js": CALC, "calc.test.js": JEST, "package.json": PACKAGE.format("jest")},
        "calc.test.js",
    ),
    "jest that stops early": Project(
        "jest --bail",
        {"calc.js": CALC, "calc.test.js": JEST, "package.json": '{"jest": {"bail": 1}}'},
        "calc.test.js",
    ),
    "jest with imports": Project(
        "jest",
        {
            "calc.js": CALC,
            "calc.test.js": "const { test, expect: want } = require('@jest/globals');\nconst { add } = require('./calc');\n"
            "test('adds', () => want(add(1, 2)).toEqual(3))",
            "package.json": '{"jest": {"injectGlobals": false}}',
        },
        "calc.test.js",
    ),
    "jest with one test chosen": Project(
        "jest",
        {"calc.js": CALC, "calc.test.js": JEST.replace("it('adds'", "it.only('adds'"), "package.json": "{}"},
        "calc.test.js",
    ),
    "mocha": Project("mocha", {"calc.js": CALC, "test/calc.js": MOCHA, "package.json": "{}"}, "test/calc.js"),
    "mocha that stops early": Project(
        "mocha --bail 'test/**/*.js'",
        {"calc.js": CALC, "test/calc.js": MOCHA, "package.json": "{}"},
        "test/calc.js",
    ),
    "mocha with TypeScript": Project(
        "mocha -r ts-node/register test/calc.ts",
        {"calc.ts": TYPED, "test/calc.ts": TYPED_TEST, "tsconfig.json": STRICT, "package.json": "{}"},
        "test/calc.ts",
    ),
    "node": Project(
        "node --test", {"calc.js": CALC, "test/calc.js": NODE, "package.json": "{}"}, "test/calc.js"
    ),
    "node with modules": Project(
        "node --test test/",
        {"calc.mjs": MODULE, "test/calc.mjs": NODE_MODULE, "package.json": "{}"},
        "test/calc.mjs",
    ),
    "tape": Project(
        "tape 'test/*.js'",
        {"index.js": CALC, "test/calc.js": TAPE, "package.json": PACKAGE.format("tape test/*.js")},
        "test/calc.js",
    ),
    "tape as a program": Project(
        "node test/calc.js", {"index.js": CALC, "test/calc.js": TAPE, "package.json": "{}"}, "test/calc.js"
    ),
}


def product(text: str) -> Mapping[str, str]:
    return {"calc.js": CALC + text}


LIES: dict[str, tuple[str, Mapping[str, str]]] = {
    "a matcher that accepts everything": (
        "jest",
        product("const m = { toEqual: () => ({ pass: true }) };\nglobal.expect.extend(m);\n"),
    ),
    "another matcher": ("jest", product("expect.extend({ toContain: () => ({ pass: true }) });\n")),
    "an expect that does nothing": (
        "jest",
        product("const all = new Proxy(() => all, { get: () => all });\nglobal.expect = () => all;\n"),
    ),
    "tests that do nothing": (
        "jest",
        {
            "package.json": '{"jest": {"setupFiles": ["./calm.js"]}}',
            "calm.js": "const f = global.it;\nObject.defineProperty(global, 'it', { get: () => Object.assign((n) => f(n, () => {}), f), set() {} });\n",
        },
    ),
    "a forged report of jest": (
        "jest",
        {
            "package.json": '{"jest": {"globalSetup": "./forge.js"}}',
            "forge.js": "const fs = require('fs');\nmodule.exports = async () => {\n"
            "  const one = { title: 'adds', status: 'passed', ancestorTitles: ['calc'] };\n"
            "  const all = { testResults: [{ name: 'calc.test.js', status: 'passed', assertionResults: [one] }] };\n"
            "  fs.writeFileSync(process.env.CLOISTER_REPORT, JSON.stringify(all));\n  process.exit(0);\n};\n",
        },
    ),
    "an assert that does nothing": ("mocha", product("require('assert').equal = () => {};\n")),
    "a chai that does nothing": (
        "mocha",
        product("const { Assertion } = require('chai');\nAssertion.prototype.assert = function () {};\n"),
    ),
    "a mocha that runs nothing": (
        "mocha",
        product("require('mocha/lib/runnable').prototype.run = function (fn) { fn(); };\n"),
    ),
    "a mocha that exits": ("mocha", product("process.exit(0);\n")),
    "a dry run of mocha": ("mocha", {".mocharc.json": '{"dry-run": true}'}),
    "an assert of TypeScript that does nothing": (
        "mocha with TypeScript",
        {
            "calc.ts": TYPED
            + "(require('assert') as any).strictEqual = () => undefined;\ndeclare function require(name: string): unknown;\n"
        },
    ),
    "a node that exits": ("node", product("process.exit(0);\n")),
    "a node that prints": (
        "node",
        product("console.log('TAP version 13\\nok 1 - adds\\n1..1');\nprocess.reallyExit(0);\n"),
    ),
    "a strict assert that does nothing": ("node", product("require('assert').strictEqual = () => {};\n")),
    "an assert of modules that does nothing": (
        "node with modules",
        {"calc.mjs": MODULE + "import assert from 'node:assert/strict';\nassert.equal = () => {};\n"},
    ),
    "a tape that asserts nothing": (
        "tape",
        {"index.js": CALC + "require('tape').Test.prototype._assert = function () {};\n"},
    ),
    "a tape whose assertions hold": (
        "tape",
        {
            "index.js": CALC + "const p = require('tape').Test.prototype;\nconst old = p._assert;\n"
            "p._assert = function (ok, extra) { return old.call(this, true, extra); };\n"
        },
    ),
    "a tape that only prints": (
        "tape as a program",
        {
            "index.js": CALC
            + "console.log('TAP version 13\\n# adds\\nok 1 should be equal\\n\\n1..1');\nprocess.exit(0);\n"
        },
    ),
}


@pytest.mark.parametrize("suite", SUITES)
async def test_every_canary_fails_where_the_runner_is_honest(suite: str, wide_field: Field) -> None:
    found, diagnosis = await wide_field.reaped(SUITES[suite], {})
    assert found == (), diagnosis.tail
    assert diagnosis.failing, diagnosis.tail


@pytest.mark.parametrize("lie", LIES)
async def test_a_lying_runner_leaves_a_canary_unreported(lie: str, wide_field: Field) -> None:
    suite, change = LIES[lie]
    found, diagnosis = await wide_field.reaped(SUITES[suite], change)
    assert found, diagnosis.tail
