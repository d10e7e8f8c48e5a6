"""What is put back before the red tests are run as the base has them."""

from cloister.core.diagnosis import Diagnosis, Weakening
from cloister.core.diagnosis import TestResult as Result
from cloister.feedback.integrity.base_tests import PutBack, must_pass_as_before, own_file, put_back, spoils
from cloister.feedback.integrity.versions import Version, is_documentation, is_product

RED = Result("tests/test_shop.py::test_a", "failed", message="assert 1 == 2")
CALM = Result("tests/test_calm.py::test_b", "passed")
BASE = [Diagnosis("pytest", 1, 1.0, tests=(RED, CALM))]
KNOWN = ("shop.py", "tests/test_shop.py", "tests/test_calm.py", "tests/conftest.py")


def test_a_change_that_touches_no_tests_is_not_asked_twice() -> None:
    assert put_back(["shop.py", "README.md"], ["cart.py"], KNOWN, BASE) == ()


def test_tests_helpers_data_and_hooks_are_restored_and_shadowing_modules_removed() -> None:
    changed = [
        "shop.py",
        "tests/test_shop.py",
        "tests/helpers.py",
        "tests/data/a.json",
        "pytest.ini",
        "src/lib.rs",
    ]
    new = [
        "cart.py",
        "conftest.py",
        "tests/shop.py",
        "tests/factory.py",
        "tests/test_new.py",
        "tests/data/b.json",
    ]

    assert put_back(changed, new, KNOWN, BASE) == (
        PutBack(
            ("tests/test_shop.py", "tests/helpers.py", "tests/data/a.json", "pytest.ini"),
            ("conftest.py", "tests/shop.py", "tests/test_new.py"),
        ),
    )


def test_where_tests_are_built_together_one_that_passed_may_stay_as_it_is_now() -> None:
    red, calm = Result("calc_test.go::TestAdd", "failed"), Result("more_test.go::TestMore", "passed")
    base = [Diagnosis("go test ./...", 1, 1.0, tests=(red, calm))]

    assert put_back(["calc_test.go", "more_test.go"], [], (), base) == (
        PutBack(("calc_test.go",)),
        PutBack(("calc_test.go", "more_test.go")),
    )


def test_a_script_that_is_there_to_check_goes_back_and_one_that_is_checked_stays() -> None:
    base = [Diagnosis("sh ./verify.sh", 1, 1.0), Diagnosis("python3 shop.py", 1, 1.0)]

    assert put_back(["verify.sh", "shop.py"], [], (), base) == (PutBack(("verify.sh",)),)


def test_a_test_that_failed_for_something_missing_can_be_fixed_by_adding_it() -> None:
    lacking = Result("tests/test_shop.py::test_c", "error", message="E  fixture 'client' not found")
    base = [Diagnosis("pytest", 1, 1.0, tests=(RED, lacking)), Diagnosis("ruff check", 1, 1.0)]

    assert must_pass_as_before(base, (RED.name, lacking.name, "ruff check")) == (
        {RED.name},
        {lacking.name},
    )
    text = "def test_c(client):\n    assert client.get() == 1\n"
    added = {"tests/test_shop.py": Version("tests/test_shop.py", text, f"import client\n\n\n{text}")}
    assert own_file(lacking.name, base, added) is None
    eased = {"tests/test_shop.py": Version("tests/test_shop.py", text, text.replace("== 1", ""))}
    assert own_file(lacking.name, base, eased) == "tests/test_shop.py"


def test_a_file_of_go_that_holds_no_red_test_may_be_left_out() -> None:
    red = Result("example.com/calc::TestTable/one/two", "failed")
    base = [Diagnosis("go test ./...", 1, 1.0, tests=(red, Result("example.com/calc::TestZero", "passed")))]
    names = ("table_test.go", "zero_test.go", "helpers_test.go")
    texts = {
        names[0]: Version(names[0], "func TestTable(t *testing.T) {\n}\n", ""),
        names[1]: Version(names[1], "func TestZero(t *testing.T) {\n}\n", ""),
        names[2]: Version(names[2], "func same(t *testing.T) {\n}\n", ""),
    }

    assert put_back(names, [], (), base, texts) == (
        PutBack((names[0], names[2]), (names[1],)),
        PutBack(names),
    )


def test_in_rust_the_tests_in_the_code_go_back_and_those_that_passed_may_be_left_out() -> None:
    red, calm = Result("tests::adds", "failed"), Result("tests::calm", "passed")
    code = "fn add() {\n}\n"
    adds = "#[test]\nfn adds() {\n    add();\n}\n"
    quiet = "#[test]\nfn calm() {\n    old();\n}\n"
    inside = {"src/lib.rs": Version("src/lib.rs", code + adds + quiet, code + quiet.replace("old", "new"))}
    base = [Diagnosis("cargo test", 1, 1.0, tests=(red, calm))]

    lean, whole = put_back(["src/lib.rs"], [], (), base, inside)

    assert [name for name, _ in whole.write] == ["src/lib.rs"]
    assert "old();" in whole.write[0][1]
    assert "fn adds" in whole.write[0][1]
    assert "fn calm" not in lean.write[0][1]
    assert "fn adds" in lean.write[0][1]


def test_scripts_in_the_place_of_tests_go_away_when_they_are_new() -> None:
    new = ["test/a.js", "__mocks__/shop.js", "tests/factory.py", ".npmrc", ".cargo/config.toml"]

    assert put_back([], new, (), BASE) == (
        PutBack((), (".npmrc", ".cargo/config.toml", "test/a.js", "__mocks__/shop.js")),
    )


def test_code_that_the_checks_rewrite_is_a_deceit_where_the_change_touched_more_than_code() -> None:
    told = Weakening("calc.go", "deceived", detail="it was rewritten while the checks ran")

    assert spoils(["calc.go", "Makefile"], ["calc.go", "go.sum"]) == (told,)
    assert spoils(["calc.go"], ["calc.go"]) == ()
    assert spoils(["calc.go", "Makefile"], ["go.sum"]) == ()


def test_new_modules_that_shadow_python_or_its_test_tools_go_away() -> None:
    new = [
        "unittest.py",
        "src/pytest/__init__.py",
        "tests/difflib.cpython-311-x86_64-linux-gnu.so",
        "apps/shop/src/pytest.py",
        "shop/token.py",
    ]

    assert put_back([], new, (), BASE) == (PutBack((), tuple(new[:4])),)


def test_tests_and_their_data_that_the_checks_rewrite_are_a_deceit() -> None:
    told = [
        one.file
        for one in spoils(["shop.py"], ["tests/test_shop.py", "tests/data/a.json", "shop.py", "log.txt"])
    ]

    assert told == ["tests/test_shop.py", "tests/data/a.json"]


def test_a_file_that_is_neither_for_readers_nor_a_setting_may_be_code_of_the_product() -> None:
    code = [
        "app/Price.vue",
        "price.svelte",
        "Price.cs",
        "init.lua",
        "fast.pyx",
        "fast.abi3.so",
        "shop.ex",
        "bin/shop",
        "page.html",
    ]
    others = [
        "README.md",
        "docs/logo.png",
        "LICENSE",
        "go.mod",
        "pom.xml",
        "Makefile",
        "package.json",
        ".npmrc",
        "tests/test_a.lua",
        "Shop.Tests/Facts.cs",
    ]

    assert [path for path in code if not is_product(path)] == []
    assert [path for path in others if is_product(path)] == []
    assert [path for path in (*code, *others) if is_documentation(path)] == others[:3]
