"""Which tests of a file get mutants, and which of their assertions; sources that mean harm."""

import pytest

from cloister.feedback.experiments.mutants import Edit, apply, mutants

PYTHON = """\
class Base:
    def test_shared(self):
        assert 1 == 1 + 0

class TestC(Base):
    def test_a(self, x):
        assert x == 1
        assert x == 2
        assert x == 3
        if x: assert x == 4
        assert x == 5

    class TestInner:
        def test_a(self):
            assert 1 == 9

def test_b():
    pass

def test_long():
    for x in range(3):
        assert x < 3
    return
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("tests/unit/test_x.py::TestC::test_a", 7),
        ("unit/test_x.py::TestC::test_a[1-a::b]", 7),
        ("test_x.py::TestC::TestInner::test_a", 15),
        ("tests.unit.test_x.TestC::test_a", 7),
        ("unit.test_x.TestC::test_a", 7),
        ("__main__.TestC::test_a", 7),
        ("test_x.TestC::test_shared", 3),
        ("tests/unit/test_x.py::TestC::test_shared", 3),
    ],
)
def test_a_python_test_is_found_by_the_name_that_reports_give_it(name: str, line: int) -> None:
    made = mutants("tests/unit/test_x.py", PYTHON, [name])
    assert made[name].edits[0].line == line


@pytest.mark.parametrize(
    "name",
    [
        "tests/test_x.py::TestC::test_a",
        "other/unit/test_x.py::TestC::test_a",
        "tests.unit.test_y.TestC::test_a",
        "tests/unit/test_x.py::TestD::test_a",
        "tests/unit/test_x.py::test_a",
        "test_x.py::TestInner::test_shared",
        "",
    ],
)
def test_a_test_of_another_file_or_class_gets_nothing(name: str) -> None:
    assert mutants("tests/unit/test_x.py", PYTHON, [name]) == {}


SCRIPT = """\
describe('cart', () => {
  describe("it's full", function () {
    it('adds up', () => { expect(1).toBe(1) })
  })
  it.each([[1, 2]])('doubles %i to %i', (a, b) => { expect(a * 2).toBe(b) })
  for (const c of cases) it(c.title, () => { expect(c.x).toBe(5) })
  test.concurrent(`takes ${1} off`, async () => {
    expect(2).toBe(2)
  })
})
test('outer', (t) => {
  t.test('inner', (t) => { t.equal(3, 3); t.end() })
})
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("test/cart.test.ts::cart > it's full > adds up", 3),
        ("cart.test.ts::cart > it's full > adds up", 3),
        ("cart it's full adds up", 3),
        ("cart it's full::adds up", 3),
        ("cart > it's full > adds up", 3),
        ("cart.test.ts::cart > doubles 1 to 2", 5),
        ("cart.test.ts::cart > takes 1 off", 8),
        ("cart.test.ts::cart > from the table", 6),
        ("inner", 12),
        ("outer > inner", 12),
    ],
)
def test_a_script_test_is_found_by_the_name_that_reports_give_it(name: str, line: int) -> None:
    assert mutants("test/cart.test.ts", SCRIPT, [name])[name].edits[0].line == line


@pytest.mark.parametrize(
    "name", ["other/cart.test.ts::cart > it's full > adds up", "cart.test.ts::shop > adds", "adds"]
)
def test_a_script_test_of_another_file_or_suite_gets_nothing(name: str) -> None:
    assert mutants("test/cart.test.ts", SCRIPT, [name]) == {}


GO = """\
package cart

func TestSum(t *testing.T) {
	if 1 != 1 { t.Fatal(1) }
}

func (s *CartSuite) TestEmpty() {
	s.Equal(1, 1)
}
"""
RUST = """\
#[test]
fn outer() { assert_eq!(1, 1); }
mod tests {
    #[test]
    fn adds() { assert_eq!(2, 2); }
}
"""


C = """\
#include "utest.h"
static void deep(int x) { assert(x == 1); }
static void test_sum(void) { deep(1); }
UTEST(cart, adds) {
    ASSERT_EQ(1, 1);
}
TEST_F(CartTest, Sum) { EXPECT_EQ(1, 1) << "no"; }
TEST_CASE("an empty cart", "[cart]") {
    REQUIRE(1 == 1);
}
int main(void) {
    test_sum();
    return 0;
}
"""
JAVA = """\
package shop;

class Base {
    @Test void shared() { assertEquals(1, 1); }
}
class CartTest extends Base {
    @ParameterizedTest void odd(int x) { assertTrue(x % 2 == 1); }
    @Test(expected = IllegalStateException.class) public void refuses() { assertEquals(1, 1); }
    @Nested class WhenTaxed {
        @Test void costsMore() { assertThat(1).isEqualTo(1); }
    }
}
"""


@pytest.mark.parametrize(
    ("path", "text", "name", "line"),
    [
        ("test/cart_test.c", C, "cart_test.c::test_sum", 2),
        ("test/cart_test.c", C, "cart", 2),
        ("test/cart_test.c", C, "test-cart", 2),
        ("test/cart_test.c", C, "till", None),
        ("test/cart_test.c", C, "cart.adds", 5),
        ("test/cart_test.cc", C, "CartTest.Sum", 7),
        ("test/cart_test.cc", C, "All/CartTest.Sum/0", 7),
        ("test/cart_test.cc", C, "an empty cart", 9),
        ("src/test/java/shop/CartTest.java", JAVA, "shop.CartTest::odd(int)[2]", 7),
        ("src/test/java/shop/CartTest.java", JAVA, "shop.CartTest::odd{int}[2]", 7),
        ("src/test/java/shop/CartTest.java", JAVA, "CartTest::refuses", 8),
        ("src/test/java/shop/CartTest.java", JAVA, "shop.CartTest$WhenTaxed::costsMore()", 10),
        ("src/test/java/shop/CartTest.java", JAVA, "shop.CartTest::shared()", 4),
        ("src/test/java/shop/CartTest.java", JAVA, "till.CartTest::odd(int)[2]", None),
        ("cart/cart_test.go", GO, "example.com/shop/cart::TestSum", 4),
        ("cart/cart_test.go", GO, "example.com/shop/cart::TestSum/two_apples", 4),
        ("cart_test.go", GO, "example.com/shop::TestSum", 4),
        ("cart/cart_test.go", GO, "example.com/shop/cart::TestCart/TestEmpty", 8),
        ("cart/cart_test.go", GO, "example.com/shop/till::TestSum", None),
        ("src/cart.rs", RUST, "cart::tests::adds", 5),
        ("crates/shop/src/cart/mod.rs", RUST, "cart::tests::adds", 5),
        ("src/a/b.rs", RUST, "a::b::outer", 2),
        ("src/lib.rs", RUST, "tests::adds", 5),
        ("src/lib.rs", RUST, "tests::adds::case_1_small", 5),
        ("tests/till.rs", RUST, "outer", 2),
        ("src/till.rs", RUST, "cart::tests::adds", None),
        ("src/till.rs", RUST, "tests::adds", None),
    ],
)
def test_a_compiled_test_is_found_by_its_name_and_package(
    path: str, text: str, name: str, line: int | None
) -> None:
    made = mutants(path, text, [name])
    assert [one.edits[0].line for one in made.values()] == ([] if line is None else [line])


def test_a_suite_with_the_name_of_a_function_lends_no_assertions_to_its_tests() -> None:
    text = (
        "describe('short', () => {\n"
        "  it('keeps', () => { expect(short('abc', 5)).toEqual('abc'); });\n"
        "  it('cuts', () => { expect(short('abcdef', 4)).toBe('a...'); });\n"
        "});\n"
    )
    found = mutants("a.test.js", text, ("a.test.js::short > keeps",), 9)
    lines = {text.encode()[: edit.start].count(b"\n") for edit in found["a.test.js::short > keeps"].edits}
    assert lines == {1}


def test_snapshots_and_constants_are_not_changed() -> None:
    script = "test('a', () => { expect(f()).toMatchSnapshot(); expect(f()).toMatchInlineSnapshot(`x`) })\n"
    assert mutants("a.test.js", script, ["a.test.js::a"])["a.test.js::a"].edits == ()
    python = "def test_a(snapshot):\n    assert f() == snapshot\n    assert True\n    assert not_called\n"
    made = mutants("a.py", python, ["a.py::test_a"])["a.py::test_a"]
    assert [edit.was for edit in made.edits] == ["assert not_called"]


def test_the_first_the_last_and_the_middle_assertion_are_changed_and_conditions_avoided() -> None:
    name = "test_x.py::TestC::test_a"
    made = mutants("test_x.py", PYTHON, [name])[name]
    assert [edit.line for edit in made.edits] == [7, 11, 9]
    assert [edit.was for edit in made.edits] == ["assert x == 1", "assert x == 5", "assert x == 3"]
    assert [edit.line for edit in made.reached] == [7, 11, 9]
    assert [edit.line for edit in mutants("test_x.py", PYTHON, [name], limit=9)[name].edits][3:5] == [8, 10]


@pytest.mark.parametrize(
    ("path", "text", "changed"),
    [
        ("a.test.js", "test('a', () => { expect(time).toBeLessThan(2000) })\n", "toBeLessThan(-Infinity)"),
        ("a.test.js", "test('a', () => { expect(n).toBeGreaterThan(2) })\n", "toBeGreaterThan(Infinity)"),
        ("a.test.js", "test('a', () => { assert.ok(time < 5) })\n", "ok(time < -Infinity)"),
        ("test_a.py", "def test_a():\n    assert time() - begin < 2.5\n", '< float("-inf")'),
        ("test_a.py", "def test_a():\n    assert 3 >= count\n", 'assert float("-inf") >= count'),
        ("test_a.py", "def test_a(self):\n    self.assertLess(time, 2)\n", 'assertLess(time, float("-inf"))'),
        ("test_a.py", "def test_a(self):\n    self.assertGreaterEqual(9, n)\n", 'Equal(float("-inf"), n)'),
    ],
)
def test_no_measured_number_is_on_the_right_side_of_a_changed_bound(
    path: str, text: str, changed: str
) -> None:
    made = mutants(path, text, [f"{path}::test_a" if path.endswith("py") else f"{path}::a"])

    [found] = made.values()
    assert changed in apply(text, found.edits[:1])


def test_a_test_without_assertions_has_only_an_end() -> None:
    name = "test_x.py::test_b"
    made = mutants("test_x.py", PYTHON, [name])[name]
    assert (made.edits, made.reached) == ((), ())
    assert made.end is not None
    assert "pass\n    raise AssertionError" in apply(PYTHON, [made.end])


def test_an_end_comes_before_the_last_return() -> None:
    name = "test_x.py::test_long"
    end = mutants("test_x.py", PYTHON, [name])[name].end
    assert end is not None
    assert apply(PYTHON, [end]).splitlines()[-1] == "    return"


def test_edits_apply_in_any_order_and_count_bytes() -> None:
    text = "é = 'ü'\n"
    edits = [Edit(6, 8, "ö", 1, ""), Edit(0, 2, "a", 1, "")]
    assert apply(text, edits) == apply(text, reversed(edits)) == "a = 'ö'\n"


@pytest.mark.parametrize("path", ["test_x.rb", "README", "test_x.txt", ".py/x"])
def test_other_languages_get_nothing(path: str) -> None:
    assert mutants(path, PYTHON, ["test_b", f"{path}::test_b"]) == {}


def _hostile(size: int) -> list[str]:
    shapes = (
        "(", "[1,", "assert not ", "def f():\n ", "class A:\n\t", "assert ) ( ] ", '"', "'''\n", "{", "x == 1 and ",
        "lambda: ", "with raises(", "\\\n", "\0", "\udcff", "\r\n ", "assert x == [",
        "expect(", "describe('a', () => {", "it('a', () => { expect(", ".not", "`${", "func f() { if ", "fn f() { assert_eq!(",
        "TEST(A, B) {", "if (a != 1) return 1;", "assertThat(", "class A { @Test void f() { ", "assertAll(() -> ",
        "mod a { ", "assert_eq!(f::<", "x.should.", "if (a) throw b;", "<div>", "/*", "//\n", "#[", "t.equal(",
    )  # fmt: skip
    head = "def test_a():\n    assert "
    return [shape * (size // len(shape)) for shape in shapes] + [
        head + shape * (size // len(shape)) for shape in shapes
    ]


@pytest.mark.parametrize(
    "path", ["test_x.py", "x.test.js", "x.test.tsx", "x_test.go", "src/lib.rs", "a.c", "a.cpp", "A.java"]
)
def test_hostile_sources_raise_nothing_and_edits_stay_inside(path: str) -> None:
    for text in _hostile(3_000):
        for one in mutants(path, text, [f"{path}::test_a", "test_a", "f", "A::f", "a"]).values():
            for edit in (*one.edits, *one.reached, one.end):
                assert edit is None or 0 <= edit.start <= edit.end <= len(text.encode(errors="surrogatepass"))
                assert edit is None or (len(edit.was) <= 160 and "\n" not in edit.was)


def test_a_cut_character_raises_nothing() -> None:
    for shift in range(4):
        text = f"void test_a(void) {{ if (x){' ' * shift}{{ // {'€' * 500}\n return 1; }} }}\n"
        assert mutants("a.c", text, ["a.c::test_a"])["a.c::test_a"].end is not None


def test_a_text_on_which_the_parser_takes_quadratic_time_gets_nothing() -> None:
    """With 500,000 quotes the parser alone takes a quarter of an hour."""
    text = "test('a', () => { expect(1).toBe(1) })\n" + '"' * 500_000
    assert mutants("a.test.js", text, ["a.test.js::a"]) == {}


def test_a_file_beyond_the_limit_gets_nothing() -> None:
    text = PYTHON + "#" * (512 * 1024)
    assert mutants("test_x.py", text, ["test_x.py::TestC::test_a"]) == {}
