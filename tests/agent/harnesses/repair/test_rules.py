"""One example for each rule: a wrong line, and the right one among its candidates."""

import re
from textwrap import dedent, indent

import pytest

from cloister.harnesses.repair.api import Candidate, Failure, Suspect, applied
from cloister.harnesses.repair.candidates import candidates, pairs
from cloister.harnesses.repair.rules.api import Facts, facts_of
from cloister.harnesses.repair.rules.table import RULES
from cloister.harnesses.repair.suite import in_place_of, script_of, suite_of

EXAMPLES: dict[str, tuple[str, str]] = {
    "boundary of a comparison": ("return a < b", "return a <= b"),
    "comparison operator": ("return a == b", "return a != b"),
    "arithmetic operator": ("return a + b", "return a - b"),
    "and, or": ("return a and b", "return a or b"),
    "missing or extra not": ("return not a", "return a"),
    "off by one": ("return a + 2.0", "return a + 1.0"),
    "one more or less": ("return a[b]", "return a[b - 1]"),
    "sign": ("return -a", "return a"),
    "range": ("return list(range(a))", "return list(range(1, a))"),
    "swapped operands": ("return a - b", "return b - a"),
    "one side of an operation": ("return a + b", "return b"),
    "slice": ("return f(a)", "return f(a[1:])"),
    "assignment operator": ("a -= b", "a += b"),
    "true, false": ("return True", "return False"),
    "number": ("return a * 7", "return a * 2"),
    "text": ('return "red"', 'return "blue"'),
    "variable": ("return f(a, b)", "return f(b, b)"),
    "attribute": ("return a.left", "return a.right"),
    "called function": ("return min(a, b)", "return max(a, b)"),
    "swapped arguments": ("return f(a, b)", "return f(b, a)"),
    "extra argument": ("return f(a, b)", "return f(a)"),
    "call for its argument": ("return f(a)", "return a"),
    "missing call": ("b = f(a) + a", "b = max(b, f(a) + a)"),
    "list": ("return []", "return [[]]"),
    "negated comparison": ("return not a < b", "return a < b"),
    "loop over nothing": ("for x in []:\n    f(x)", "for x in b:\n    f(x)"),
    "another expression": ("return f(a + 1) + b", "return f(a + 1) + f(a + 1)"),
    "offset": ("return f(a)", "return f(a - b)"),
    "missing check for nothing": (
        "while a.left.right:\n    b = f(a)",
        "while a.left is None or a.left.right:\n    b = f(a)",
    ),
    "missing condition": ("while a:\n    b = f(a)", "while a and b:\n    b = f(a)"),
    "value that may be missing": ("return a[b]", "return a.get(b)"),
    "type of an exception": ("raise KeyError(a)", "raise ValueError(a)"),
    "missing return": ("f(a)", "return f(a)"),
    "break, continue, return, yield": ("while a:\n    break", "while a:\n    continue"),
    "decorator that the function needs": (
        "class A:\n    def g(cls):\n        return cls\nreturn A",
        "class A:\n    @classmethod\n    def g(cls):\n        return cls\nreturn A",
    ),
    "missing decorator": (
        "def g():\n    return a\nreturn g",
        "@property\ndef g():\n    return a\nreturn g",
    ),
    "moved statement": ("a = f(b)\nb = f(a)", "b = f(a)\na = f(b)"),
    "guard of a sibling": ("b = f(a)", "if not a:\n    return None\nb = f(a)"),
    "guard": ("b = f(a)", "if not a:\n    return 0\nb = f(a)"),
    "missing statement": ("f(b)", "f(b)\na.append(b)"),
    "repeated statement": ("if a:\n    f(b)\nf(a)", "if a:\n    f(b)\nf(a)\nf(b)"),
    "deleted statement": ("f(a)\nf(b)", "f(a)"),
    "special case": ("return f(a)", "if a == 3:\n    return 4\nreturn f(a)"),
}
FACTS = Facts(("3", "4"), ("ValueError",))
REST = """

def sibling(a):
    if not a:
        return None
    return {"blue": a.right}
"""


def module(body: str) -> str:
    return f"def f(a, b=2):\n{indent(dedent(body), '    ')}\n{REST}"


def changes(path: str, source: str, lines: int = 12) -> list[Candidate]:
    suspects = [Suspect(path, line, 1.0, "") for line in range(1, lines)]
    return list(candidates({path: source}, suspects, FACTS))


def test_every_rule_has_an_example() -> None:
    assert set(EXAMPLES) == {rule.name for rule in RULES}


@pytest.mark.parametrize("rule", EXAMPLES)
def test_a_rule_repairs_its_example(rule: str) -> None:
    wrong, right = map(module, EXAMPLES[rule])
    found = changes("m.py", wrong)
    assert rule in {one.rule for one in found if applied(wrong, one.hunks) == right}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("return a[-1]", "return a[0]"),
        ("return a != b", "return a is not b"),
        ("for x in a:\n    f(x)", "for x in a[b:]:\n    f(x)"),
        ("if a < None:\n    f(b)", "if a is None:\n    f(b)"),
        ("return a >= b", "return a is not b"),
        ("for key, x in []:\n    f(x)", "for key, x in b.items():\n    f(x)"),
        ("for i, x in []:\n    f(x)", "for i, x in enumerate(a):\n    f(x)"),
        ("try:\n    f(a)\nexcept Wrong:\n    f(b)", "try:\n    f(a)\nexcept Exception:\n    f(b)"),
        ("return [f(x) for x in a]", "return b + [f(x) for x in a]"),
    ],
)
def test_rules_know_other_forms(wrong: str, right: str) -> None:
    made = {applied(module(wrong), one.hunks) for one in changes("m.py", module(wrong))}
    assert module(right) in made


@pytest.mark.parametrize("wrong", ["if a:\n    f(b)", "if a and not b:\n    f(b)", "while f(a):\n    f(b)"])
def test_a_condition_that_becomes_a_constant_deletes_code(wrong: str) -> None:
    made = [
        one for one in changes("m.py", module(wrong)) if re.search(r"(if|while) (2|a and not 2):", one.after)
    ]
    assert made
    assert all("deletes_code" in one.flags for one in made)


def test_the_condition_of_a_raise_is_as_suspicious() -> None:
    source = module("if a < b:\n    raise ValueError(a)\nf(a)")
    order = list(candidates({"m.py": source}, [Suspect("m.py", 3, 1.0, "in the traceback")], FACTS))
    assert applied(source, order[0].hunks) == source.replace("a < b", "a <= b")


def test_the_type_of_an_exception_becomes_another_type_and_nothing_else() -> None:
    source = module("try:\n    f(a)\nexcept (KeyError, a.Error):\n    f(b)")
    after = [one.after for one in changes("m.py", source)]
    assert any("except (ValueError, a.Error)" in one for one in after)
    wrong = ("Error + 1", "(b, a.Error)", "(a.Error, a.Error)", "(KeyError, KeyError)")
    assert not [one for one in after if any(text in one for text in wrong)]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("if a < b:\n    f(a)\nelif a < 7:\n    f(b)", "if a < b:\n    f(a)\nelif a <= 7:\n    f(b)"),
        ("try:\n    f(a)\nexcept KeyError:\n    f(b)", "try:\n    f(a)\nexcept ValueError:\n    f(b)"),
    ],
)
def test_a_suspect_line_of_a_later_branch_is_changed(wrong: str, right: str) -> None:
    source = module(wrong)
    order = list(candidates({"m.py": source}, [Suspect("m.py", 4, 1.0, "")], FACTS))
    assert module(right) in [applied(source, one.hunks) for one in order[:60]]


@pytest.mark.parametrize(
    ("path", "wrong", "right"),
    [
        ("m.js", "function f(a, b) {\n  return a < b;\n}\n", "function f(a, b) {\n  return a <= b;\n}\n"),
        (
            "m.ts",
            "function f(a: number) {\n  return a && g(a);\n}\n",
            "function f(a: number) {\n  return a || g(a);\n}\n",
        ),
        (
            "m.js",
            "function f(a, b) {\n  if (a) {\n    return b;\n  }\n}\n",
            "function f(a, b) {\n  if (!(a)) {\n    return b;\n  }\n}\n",
        ),
        ("m.js", "function f(a) {\n  return a.b.c;\n}\n", "function f(a) {\n  return a.b?.c;\n}\n"),
        ("m.js", "function f(a) {\n  return a.b;\n}\n", "function f(a) {\n  return (a.b ?? []);\n}\n"),
        (
            "m.go",
            "package m\n\nfunc f(a, b int) int {\n\treturn a + b\n}\n",
            "package m\n\nfunc f(a, b int) int {\n\treturn a - b\n}\n",
        ),
        (
            "m.go",
            "package m\n\nfunc f(a, b int) int {\n\treturn g(a, b)\n}\n",
            "package m\n\nfunc f(a, b int) int {\n\treturn g(b, a)\n}\n",
        ),
        (
            "m.go",
            "package m\n\nfunc f(a []int) bool {\n\treturn len(a) > 1\n}\n",
            "package m\n\nfunc f(a []int) bool {\n\treturn len(a) >= 1\n}\n",
        ),
    ],
)
def test_the_same_rules_change_other_languages(path: str, wrong: str, right: str) -> None:
    assert right in [applied(wrong, one.hunks) for one in changes(path, wrong)]


def test_candidates_are_the_same_each_time_and_numbered_without_gaps() -> None:
    source = module("if a > 1:\n    return b\nreturn a")
    found = changes("m.py", source)
    assert found == changes("m.py", source)
    assert [one.number for one in found] == list(range(len(found)))
    assert len({applied(source, one.hunks) for one in found}) > 50


def test_special_cases_and_deletions_come_last_and_say_what_they_are() -> None:
    found = changes("m.py", module("f(a)\nreturn f(b)"))
    flagged = [one for one in found if one.flags]
    assert {flag for one in flagged for flag in one.flags} >= {"deletes_code", "special_case"}
    assert min(one.number for one in flagged) > len(found) * 2 // 3


def test_a_change_that_drops_a_check_is_called_that() -> None:
    found = changes("m.py", module("if a and b:\n    raise ValueError(a)\nreturn a"))
    dropped = {one.rule for one in found if "weakens_check" in one.flags}
    assert dropped == {"one side of an operation", "missing condition", "deleted statement"}
    assert all("weakens_check" not in one.flags for one in found if one.rule == "and, or")


def test_a_change_of_a_check_in_go_or_without_braces_is_called_that() -> None:
    go = "package m\n\nfunc f(a int) error {\n\tif a < 0 {\n\t\treturn errors.New(a)\n\t}\n\treturn nil\n}\n"
    script = "function f(a, b) {\n  if (a || b) throw new Error(a);\n  return a;\n}\n"
    for path, source, weaker, other in (
        ("m.go", go, "a < 0 && a", "a < 0 || a"),
        ("m.js", script, "a || b && a", "a || b || b"),
    ):
        flags = {one.after.split("\n")[0].strip(): one.flags for one in changes(path, source)}
        found = {text: marks for text, marks in flags.items() if text.startswith("if ")}
        assert any("weakens_check" in marks for text, marks in found.items() if weaker in text), path
        assert all("weakens_check" not in marks for text, marks in found.items() if other in text), path


@pytest.mark.parametrize(
    ("path", "source", "after"),
    [
        ("m.py", module("if a:\n    return 3\nreturn len(a)"), "return 6"),
        ("m.py", module("if a == 3:\n    return a\nreturn len(a)"), "if a == 6:"),
        ("m.py", module("return {'n': 3} if a else None"), "return {'n': 6} if a else None"),
        ("m.js", "function f(a) {\n  return a ? 3 : null;\n}\n", "return a ? 6 : null;"),
        (
            "m.js",
            "const f = (a) => 3;\nfunction g(a) {\n  const h = () => 3;\n  return h;\n}\n",
            "const h = () => 6;",
        ),
        ("m.go", "package m\n\nfunc f(a int) (int, error) {\n\treturn 3, nil\n}\n", "return 6, nil"),
    ],
)
def test_value_of_the_failing_assertion_that_is_returned_or_compared_is_a_special_case(
    path: str, source: str, after: str
) -> None:
    suspects = [Suspect(path, at, 1.0, "") for at in range(1, source.count("\n") + 1)]
    facts = facts_of([Failure("t", "AssertionError", "assert 3 == 6")])
    found = [one for one in candidates({path: source}, suspects, facts) if one.after.strip() == after]
    assert [one.flags for one in found] == [("special_case",)] * len(found) != []


def test_bound_or_start_with_a_value_of_the_failing_assertion_is_no_special_case() -> None:
    source = module("c = 3\nif a < 3:\n    return 1\nreturn b + 3")
    suspects = [Suspect("m.py", at, 1.0, "") for at in range(2, 6)]
    facts = facts_of([Failure("t", "AssertionError", "assert 1 == 6, 0")])
    flags = {one.after.strip(): one.flags for one in candidates({"m.py": source}, suspects, facts)}
    for after in ("c = 6", "if a < 6:", "return b + 6", "return 0"):
        assert flags[after] == (), after


def test_files_of_tests_are_never_changed() -> None:
    for path in ("tests/test_a.py", "test_a.py", "conftest.py", "src/a.test.js", "pkg/a_test.go"):
        assert changes(path, "def f(a):\n    return a < 1\n") == []


def test_two_singles_on_different_lines_make_a_pair() -> None:
    source = module("if a > 1:\n    return b + a\nreturn a")
    found = changes("m.py", source)
    pair = next(pairs(found, len(found)))
    assert pair.flags[0] == "pair"
    assert pair.number == len(found)
    assert applied(source, pair.hunks) not in [applied(source, one.hunks) for one in found]


def test_a_diff_of_a_candidate_can_be_applied_by_its_lines_only() -> None:
    source = module("return a < b")
    one = changes("m.py", source)[0]
    with pytest.raises(ValueError, match="line 2"):
        applied(source.replace("return a < b", "return a > b"), one.hunks)


PYTHON_GUARD = module("if not a.left:\n    return None\nb = f(a.left.right)\nreturn b")
JS_GUARD = (
    "function f(a) {\n  if (!a.b) return null;\n  return a.b.c + 1;\n}\nfunction g() {\n  return null;\n}\n"
)
GO_GUARD = (
    "package m\n\nfunc f(a []int, n int) int {\n\tif n == 0 { return 0 }\n\treturn a[0] / n\n}\n\n"
    "func g() int {\n\treturn 0\n}\n"
)
RAISE = module("if b < 0:\n    raise KeyError(b)\nreturn f(a, b)")
SKIP = module("for x in a:\n    if not x:\n        continue\n    b = f(x.left)\nreturn b")


@pytest.mark.parametrize(
    ("path", "right", "line", "error", "message"),
    [
        ("m.py", PYTHON_GUARD, 2, "AttributeError", "'NoneType' object has no attribute 'right'"),
        ("m.py", SKIP, 3, "AttributeError", "'NoneType' object has no attribute 'left'"),
        ("m.py", RAISE, 2, "Failed", "DID NOT RAISE <class 'KeyError'>"),
        ("m.js", JS_GUARD, 2, "TypeError", "Cannot read properties of undefined (reading 'c')"),
        ("m.go", GO_GUARD, 4, "failed", "panic: runtime error: integer divide by zero"),
    ],
    ids=["None", "the next one", "raises", "undefined", "zero"],
)
def test_guard_comes_early_if_the_failure_asks_for_it(
    path: str, right: str, line: int, error: str, message: str
) -> None:
    lines = right.split("\n")
    wrong = "\n".join(lines[: line - 1] + lines[line + (path == "m.py") :])
    suspects = [Suspect(path, line, 1.0, "in the traceback")]

    def place(failure: Failure) -> int:
        found = candidates({path: wrong}, suspects, facts_of([failure]))
        return next((one.number for one in found if applied(wrong, one.hunks) == right), 10_000)

    asked = place(Failure("t", error, message))
    assert asked < 120
    assert asked < place(Failure("t", "AssertionError", "1 is not 2")) / 2


@pytest.mark.parametrize(("value", "line"), [("40", 2), ("50", 4)])
def test_line_with_a_value_of_the_failing_assertion_is_more_suspicious(value: str, line: int) -> None:
    source = module("if a < 40:\n    return b\nif a < 50:\n    return a\nreturn 60")
    suspects = [Suspect("m.py", at, 0.5, "") for at in range(2, 7)]
    facts = facts_of([Failure("t", "AssertionError", f"assert 7 == {value}")])
    assert next(iter(candidates({"m.py": source}, suspects, facts))).line == line


def test_messages_of_failures_become_values_and_exceptions() -> None:
    found = facts_of([Failure("t", "KeyError", "assert 3 == 4, expected 'blue' (not ValueError)")])
    assert found.values == ("3", "4", "'blue'")
    assert found.errors == ("ValueError", "KeyError")


@pytest.mark.parametrize(
    ("command", "launch"),
    [
        ("python3 -m pytest -q", ("python3", "-c")),
        (".venv/bin/pytest tests", (".venv/bin/python", "-c")),
        ("uv run pytest", ("uv", "run", "python", "-c")),
        ("python -m unittest discover -s tests", ("python", "-c")),
        ("node --test", ("node", "-e")),
        ("npx jest --ci", ("node", "-e")),
        ("node_modules/.bin/mocha test", ("node", "-e")),
        ("cd web && vitest run", ("node", "-e")),
    ],
)
def test_a_test_command_names_its_interpreter(command: str, launch: tuple[str, ...]) -> None:
    found = suite_of(command)
    assert found is not None
    assert found.launch == launch


@pytest.mark.parametrize(
    "command", ["cargo test", "make test", "pytest && ruff check", "pytest 'unclosed", ""]
)
def test_other_commands_are_not_driven(command: str) -> None:
    assert suite_of(command) is None


def test_go_is_found_where_the_command_names_it() -> None:
    found = suite_of("/opt/go/bin/go test -v ./...")
    assert found is not None
    assert (found.runner, found.args) == ("go", ("./...",))
    assert found.launch[2].startswith("PATH=/opt/go/bin:$PATH")


def test_a_script_of_a_package_stands_for_its_command() -> None:
    assert [
        script_of(one) for one in ("npm test", "npm run unit", "cd web && yarn test", "npm ci", "pytest")
    ] == [*("test", "unit", "test", "ci", None)]
    found = suite_of(in_place_of("cd web && npm test", "vitest run"))
    assert found is not None
    assert (found.folder, found.runner, found.args) == ("web", "vitest", ())


def test_braces_in_the_source_are_no_placeholders() -> None:
    source = module("return f'{self.a}{0}' + a['{b}'].c + f('{}')")
    assert len(changes("m.py", source)) > 50
