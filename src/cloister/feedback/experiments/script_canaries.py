"""Canaries for JavaScript and TypeScript, in the style of the test file: jest, vitest, mocha, node:test, tape, ava."""

import re
from collections.abc import Callable, Mapping

import msgspec

_SCRIPT = re.compile(r"\.[cm]?[jt]sx?$")
_RUNNERS = {
    "vitest": "vitest",
    "jest": "@jest/globals|bun:test",
    "node": "node:test",
    "tape": "tape",
    "ava": "ava",
}
"""The modules from which a test file gets its functions, by runner."""
_NAME = r"[A-Za-z_$][\w$]{0,80}"
_CLAUSE = re.compile(rf"(?:^|,)\s*(?:\* as )?({_NAME})\s*(?=,|$)")
_MEMBER = re.compile(rf"({_NAME})(?:(?: as |\s*:\s*)({_NAME}))?")
_HEAD_CHARS = 50_000
"""The part of a script that is searched for imports."""
_ALSO_WHOLE = (None, "strict", "default", "test")
"""Members that stand for the whole module, as in `require('assert').strict`."""
_CALLS = re.compile(r"^[ \t]*(?:describe|context|suite|it|test|specify)(?:\.\w+)*[(`]", re.MULTILINE)

_ERRORS = re.compile(r"[(,] {0,4}((?:Range|Type|Syntax|Reference|Eval|URI)Error)\)")
"""Built-in errors that a test expects. The product may have changed what they are."""

_MATCHERS: Mapping[str, str] = {
    "toBe": "{expect}(1).toBe(2)",
    "toEqual": "{expect}([1]).toEqual([2])",
    "toStrictEqual": "{expect}({ a: 1 }).toStrictEqual({ a: 2 })",
    "not.toBe": "{expect}(1).not.toBe(1)",
    "not.toEqual": "{expect}([1]).not.toEqual([1])",
    "toBeTruthy": "{expect}(0).toBeTruthy()",
    "toThrow": "{expect}(() => undefined).toThrow()",
    "resolves": "return {expect}(Promise.resolve(1)).resolves.toBe(2)",
    "rejects": "return {expect}(Promise.resolve(1)).rejects.toBe(1)",
    "assertions": "{expect}.assertions(1)",
    "toBeFalsy": "{expect}(1).toBeFalsy()",
    "toBeNull": "{expect}(1).toBeNull()",
    "toBeDefined": "{expect}(undefined).toBeDefined()",
    "toBeUndefined": "{expect}(1).toBeUndefined()",
    "toBeNaN": "{expect}(1).toBeNaN()",
    "toBeGreaterThan": "{expect}(1).toBeGreaterThan(2)",
    "toBeGreaterThanOrEqual": "{expect}(1).toBeGreaterThanOrEqual(2)",
    "toBeLessThan": "{expect}(2).toBeLessThan(1)",
    "toBeLessThanOrEqual": "{expect}(2).toBeLessThanOrEqual(1)",
    "toBeCloseTo": "{expect}(0.5).toBeCloseTo(0.25)",
    "toBeInstanceOf": "{expect}({}).toBeInstanceOf(Date)",
    "toContain": "{expect}([1]).toContain(2)",
    "toContainEqual": "{expect}([1]).toContainEqual(2)",
    "toHaveLength": "{expect}([1]).toHaveLength(2)",
    "toHaveProperty": "{expect}({ a: 1 }).toHaveProperty('b')",
    "toMatch": "{expect}('one').toMatch(/two/)",
    "toMatchObject": "{expect}({ a: 1 }).toMatchObject({ a: 2 })",
    "toThrowError": "{expect}(() => undefined).toThrowError()",
    "toMatchInlineSnapshot": "{expect}(1).toMatchInlineSnapshot(`2`)",
    "toHaveBeenCalled": "{expect}({spy}.fn()).toHaveBeenCalled()",
    "toHaveBeenCalledTimes": "{expect}({spy}.fn()).toHaveBeenCalledTimes(1)",
    "toHaveBeenCalledWith": "{expect}({spy}.fn()).toHaveBeenCalledWith(1)",
}
_USUAL_MATCHERS = tuple(_MATCHERS)[:10]
_ASSERTS: Mapping[str, str] = {
    "equal": "(1, 2)",
    "strictEqual": "('one', 'two')",
    "deepEqual": "([1], [2])",
    "deepStrictEqual": "({ a: 1 }, { a: 2 })",
    "ok": "(false)",
    "throws": "(() => undefined)",
    "fail": "('planted')",
    "notEqual": "(1, 1)",
    "notStrictEqual": "(1, 1)",
    "notDeepEqual": "([1], [1])",
    "notDeepStrictEqual": "([1], [1])",
    "match": "('one', /two/)",
    "rejects": "(Promise.resolve(1))",
}
_CHAI_ASSERTS: Mapping[str, str] = {
    **{name: _ASSERTS[name] for name in ("equal", "strictEqual", "deepEqual", "ok", "throws", "notEqual")},
    "isTrue": "(false)",
    "isNull": "(1)",
    "include": "([1], 2)",
    "lengthOf": "([1], 2)",
}
_CHAI: Mapping[str, str] = {
    "equal": "{expect}(1).to.equal(2)",
    "deep.equal": "{expect}([1]).to.deep.equal([2])",
    "eql": "{expect}([1]).to.eql([2])",
    "true": "{expect}(false).to.be.true",
    "throw": "{expect}(() => undefined).to.throw()",
    "include": "{expect}([1]).to.include(2)",
    "property": "{expect}({ a: 1 }).to.have.property('b')",
    "lengthOf": "{expect}([1]).to.have.lengthOf(2)",
    "not.equal": "{expect}(1).to.not.equal(1)",
}
_POINTS: Mapping[str, str] = {
    "equal": "t.equal(1, 2)",
    "deepEqual": "t.deepEqual([1], [2])",
    "ok": "t.ok(false)",
    "notOk": "t.notOk(true)",
    "fail": "t.fail('planted')",
    "throws": "t.throws(function () {})",
    "error": "t.error(new Error('planted'))",
}
_AVA: Mapping[str, str] = {
    "is": "t.is(1, 2)",
    "deepEqual": "t.deepEqual([1], [2])",
    "true": "t.true(false)",
    "fail": "t.fail()",
    "throws": "t.throws(() => undefined)",
}


def is_script(path: str) -> bool:
    return _SCRIPT.search(path) is not None


def script_canaries(command: str, path: str, text: str, name: Callable[[str], str]) -> str | None:
    """The text to append to a test file; `name` gives the next canary its name and takes why it must fail.

    It goes into the file itself because most runners load each file in a process or a context of its own.
    """
    runner = _script_runner(command, text)
    if runner is None:
        return None
    writer = _Writer(runner, text, name, typed=re.search(r"\.[cm]?tsx?$", path) is not None)
    lines = writer.points() if runner in ("tape", "ava") else writer.tests()
    return "\n;\n" + "\n".join(lines) + "\n"


_ELSEWHERE = re.compile(
    r"^(?:import\b|const|let|var)[^'\"\n;=(]{0,200}\b(?:test|it|describe)\b[^'\"\n;(]{0,200}?(?:from|=)\s*(?:require\()?['\"]",
    re.MULTILINE,
)
_OTHERS = re.compile(r"\b(?:jasmine|karma|cypress|playwright|wdio|qunit|uvu|tap|lab)\b")


def _script_runner(command: str, text: str) -> str | None:
    for runner, module in _RUNNERS.items():
        if re.search(rf"['\"](?:{module})['\"]", text):
            return runner
    named = re.search(r"\b(vitest|jest|mocha)\b", command)
    if named or "react-scripts test" in command:
        return named[1] if named else "jest"
    if not _CALLS.search(text) or _OTHERS.search(command) or _ELSEWHERE.search(text):
        return None
    return "unknown" if "expect(" in text and not re.search(r"['\"]chai['\"]", text) else "mocha"


class _Names(msgspec.Struct, frozen=True):
    """The names that a script gives to a module and to its exports."""

    whole: str = ""
    parts: Mapping[str, str] = {}

    def get(self, part: str) -> str:
        """The expression for an export; empty if the script has not imported it."""
        return self.parts.get(part) or (f"{self.whole}.{part}" if self.whole else "")


def _names_of(text: str, module: str) -> _Names:
    """The names in the top-level scope of the script."""
    place = rf"['\"](?:{module})['\"]"
    imported = rf"^import[ \t]([\w$*{{}},\s]{{1,600}}?)\bfrom[ \t]?{place}"
    required = (
        rf"(?:^(?:const|let|var|import)[ \t]{{1,8}}|,[ \t]{{0,8}}\n[ \t]{{0,8}})({_NAME}|\{{[\w$:,\s]{{1,600}}\}})"
        rf"[ \t]{{0,8}}=[ \t]{{0,8}}require\([ \t]?{place}[ \t]?\)(?:\.(\w+))?"
    )
    whole, parts = "", dict[str, str]()
    for found in re.finditer(f"{imported}|{required}", text[:_HEAD_CHARS], re.MULTILINE):
        clause, member = found[1] or found[2], found[3]
        if clause.lstrip().startswith("type "):
            continue
        outer, _, inner = clause.partition("{")
        parts |= {one[1]: one[2] or one[1] for one in _MEMBER.finditer(inner)}
        name = _CLAUSE.search(outer.strip().rstrip(","))
        if name and member in _ALSO_WHOLE:
            whole = name[1]
        elif name:
            parts[member] = name[1]
    return _Names(whole, parts)


class _Writer:
    """Writes canaries with the names that a script uses."""

    def __init__(self, runner: str, text: str, name: Callable[[str], str], *, typed: bool) -> None:
        self._runner, self._text, self._name = runner, text, name
        self._any = ": any" if typed else ""
        own = _names_of(text, _RUNNERS.get(runner, "mocha"))
        calls = (
            [own.get("test"), own.get("it")]
            if runner == "node"
            else [own.parts.get("test", ""), own.parts.get("it", "")]
        )
        used = "it" if re.search(r"^[ \t]*it[.(]", text, re.MULTILINE) else "test"
        self._call = next(filter(None, calls), own.whole if runner in ("tape", "ava") else used)
        self._describe = own.get("describe") or self._global("describe")
        self._expect = own.get("expect") or self._global("expect")
        self._only = ".only" if re.search(r"\b(?:it|test|describe)\.only\(", text) else ""

    def _global(self, name: str) -> str:
        """The name if the script uses it without an import."""
        return name if re.search(rf"(?<![\w$.]){name}[.(]", self._text) else ""

    def tests(self) -> list[str]:
        forms = {"an exception": "throw new Error('planted')", **self._assertions()}
        lines = [self._test(why, f"() => {{ {body}; }}") for why, body in forms.items()]
        lines.append(self._test("a rejected promise", "() => Promise.reject(new Error('planted'))"))
        lines.append(
            self._test("an exception in an async test", "async () => { throw new Error('planted'); }")
        )
        if self._runner == "node":
            inner = f"async (t{self._any}) => {{ await t.test('part', () => {{ throw new Error('planted'); }}); }}"
            return [*lines, self._test("a failing subtest", inner)]
        if self._describe:
            inner = self._test("an exception in a suite", "() => { throw new Error('planted'); }")
            lines.append(f"{self._describe}('planted', () => {{ {inner} }});")
        if self._runner != "vitest":
            lines.append(
                self._test(
                    "an error given to the callback", f"(done{self._any}) => done(new Error('planted'))"
                )
            )
        if self._runner in ("jest", "vitest"):
            name = self._name("a failing test of a table")
            lines.append(
                f"{self._call}{self._only}.each([1])('{name} %i', (one{self._any}) => {{ throw new Error(one); }});"
            )
        return lines

    def _test(self, why: str, function: str) -> str:
        return f"{self._call}{self._only}('{self._name(why)}', {function});"

    def _assertions(self) -> dict[str, str]:
        """False assertions of each library that the script uses."""
        found: dict[str, str] = {
            f"an error that is no {name}": f"if (new Error('planted') instanceof {name}) return; throw new Error('planted')"
            for name in [*dict.fromkeys(_ERRORS.findall(self._text))][:4]
        }
        chai = _names_of(self._text, "chai")
        owner = re.escape(chai.whole or "chai")
        if member := re.search(
            rf"^(?:const|let|var)[ \t]({_NAME})[ \t]?=[ \t]?{owner}\.expect\b",
            self._text,
            re.MULTILINE,
        ):
            chai = _Names(chai.whole, {**chai.parts, "expect": member[1]})
        if expect := chai.get("expect"):
            found |= {
                f"a false {name} of chai": body.replace("{expect}", expect) for name, body in _CHAI.items()
            }
        if check := chai.get("assert"):
            found |= {
                f"a false assert.{name} of chai": f"{check}.{name}{given}"
                for name, given in _CHAI_ASSERTS.items()
            }
        if ".should" in self._text:
            one = "(1 as any)" if self._any else "(1)"
            found["a false should"] = f"{one}.should.equal(2)"
        found |= self._node_asserts()
        jest_like = self._runner in ("jest", "vitest", "unknown") or _names_of(
            self._text, "expect|@jest/globals"
        ).get("expect")
        return found | (self._matchers() if jest_like and not expect else {})

    def _node_asserts(self) -> dict[str, str]:
        names = _names_of(self._text, r"(?:node:)?assert(?:/strict)?|power-assert")
        if names.whole:
            used = [*tuple(_ASSERTS)[:7], *(name for name in _ASSERTS if f".{name}(" in self._text)]
        else:
            used = [name for name in _ASSERTS if name in names.parts]
        return {
            f"a false assert.{name}": f"{'return ' if name == 'rejects' else ''}{names.get(name)}{_ASSERTS[name]}"
            for name in dict.fromkeys(used)
        }

    def _matchers(self) -> dict[str, str]:
        whole = _names_of(self._text, "expect").whole
        expect = whole or self._expect
        if not expect:
            return {}
        spy = re.search(rf"\b({_NAME})\.fn\(", self._text)
        used = [*_USUAL_MATCHERS, *(name for name in _MATCHERS if f".{name}(" in self._text)]
        return {
            f"a false {name}": _MATCHERS[name]
            .replace("{expect}", expect)
            .replace("{spy}", spy[1] if spy else "")
            for name in dict.fromkeys(used)
            if spy or "{spy}" not in _MATCHERS[name]
        }

    def points(self) -> list[str]:
        call = self._call
        lines: list[str] = []
        if not call:
            call = "planted_test"
            is_module = re.search(r"^(?:import|export)\b", self._text, re.MULTILINE)
            lines.append(
                f"import {call} from '{self._runner}';"
                if is_module
                else f"const {call} = require('{self._runner}');"
            )
        forms, end = (_AVA, "") if self._runner == "ava" else (_POINTS, " t.end();")
        for name, body in forms.items():
            lines.append(
                f"{call}('{self._name(f'a false t.{name}')}', function (t{self._any}) {{ {body};{end} }});"
            )
        if self._runner == "ava":
            lines.append(
                f"{call}('{self._name('an exception')}', function () {{ throw new Error('planted'); }});"
            )
            return lines
        part = "s.equal(1, 2); s.end();"
        inner = f"t.test('{self._name('a failing subtest')}', function (s{self._any}) {{ {part} }}); t.end();"
        return [*lines, f"{call}('planted', function (t{self._any}) {{ {inner} }});"]
