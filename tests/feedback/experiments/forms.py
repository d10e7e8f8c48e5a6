"""Honest assertions of each language, one a line. `double` doubles, `refuse` fails with "no such thing"."""

JEST = """\
expect(double(2)).toBe(4)
expect(double(2)).toEqual(4);
expect(double(-2)).toBe(-4)
expect(double('a')).toBe('aa')
expect(double('a')).toBe(`a${'a'}`)
expect(double(2) === 4).toBe(true)
expect(null).toBe(null)
expect(undefined).toBe(undefined)
expect(NaN).toBe(NaN)
expect(double(2n)).toBe(4n)
expect([double(1)]).toEqual([2])
expect([]).toEqual([])
expect({ a: double(1), b: [1] }).toEqual({ a: 2, b: [1] })
expect({}).toEqual({})
expect({ ...LIMITS }).toStrictEqual({ ...LIMITS })
expect({ a: 1, ...LIMITS }).toEqual({ a: 2, ...LIMITS })
expect(LIMITS).toEqual(LIMITS)
expect(double(2)).toBe(LIMITS.a * 4)
expect({ a: 1, b: 2 }).toMatchObject({ a: 1 })
expect({ a: 1 }).toEqual(expect.objectContaining({ a: 1 }))
expect({ a: 1, b: 'x' }).toEqual({ a: expect.any(Number), b: 'x' })
expect(0.1 + 0.2).toBeCloseTo(0.3)
expect(0.1 + 0.2).toBeCloseTo(0.3, 5)
expect(1e300).toBe(1e300)
expect(double(2)).not.toBe(5)
expect(double(2)).toBeGreaterThan(3)
expect(double(2)).toBeLessThanOrEqual(4)
expect(double(2)).toBeTruthy()
expect(double(0)).toBeFalsy()
expect(null).toBeNull()
expect(LIMITS.zzz).toBeUndefined()
expect(LIMITS.a).toBeDefined()
expect([1, 2]).toContain(2)
expect('abc').toContain('b')
expect([{ a: 1 }]).toContainEqual({ a: 1 })
expect([1, 2]).toHaveLength(2)
expect({ a: { b: 1 } }).toHaveProperty('a.b', 1)
expect({ a: 1 }).toHaveProperty('a')
expect('abc').toMatch(/b/)
expect('abc').toMatch('b')
expect(new Error('x')).toBeInstanceOf(Error)
expect(() => refuse()).toThrow()
expect(() => refuse()).toThrow('no such')
expect(() => refuse()).toThrow(TypeError)
expect(() => refuse()).toThrow(/such/)
expect(() => double(1)).not.toThrow()
const m = jest.fn(); m(1, 2); expect(m).toHaveBeenCalledWith(1, 2)
const m = jest.fn(); m(); expect(m).toHaveBeenCalledWith()
const m = jest.fn(); m(1); expect(m).toHaveBeenCalledTimes(1)
const m = jest.fn(); m(1); expect(m).toHaveBeenCalled()
const m = jest.fn(); expect(m).not.toHaveBeenCalled()
await expect(later(3)).resolves.toBe(3)
await expect(later(3)).resolves.not.toBe(4)
await expect(fails()).rejects.toThrow('no such')
await expect(fails()).rejects.toThrow()
return expect(later(3)).resolves.toEqual(3)
return later(3).then((x) => { expect(x).toBe(3) })
check(double(2))
deeply(double(2))
expect(/* expect(1) */ double(2)) // expect(2).toBe(3)\\n    .toBe(4)
const x = double(2)\\n  expect(x).toBe(4)
for (const [x, want] of [[1, 2], [2, 4]]) expect(double(x)).toBe(want)
if (double(2) !== 4) throw new Error('no')
if (!double(2)) { throw new Error('no') }
if (double(2) > 9) throw new Error('no')
"""
CHAI = """\
expect(double(2)).to.equal(4)
expect(double(2)).to.not.equal(5)
expect(double(2)).not.to.equal(5)
expect([double(1)]).to.deep.equal([2])
expect({ a: double(1) }).to.eql({ a: 2 })
expect(double(2) === 4).to.be.true
expect(double(2) === 5).to.be.false
expect(null).to.be.null
expect(double(2)).to.exist
expect([]).to.be.empty
expect([1]).to.not.be.empty
expect([1, 2]).to.include(2)
expect([1, 2]).to.have.lengthOf(2)
expect([1, 2]).to.be.an('array').that.includes(2)
expect({ a: 1 }).to.have.property('a', 1)
expect({ a: 1, b: 2 }).to.have.all.keys('a', 'b')
expect(double(2)).to.be.above(3)
expect(0.1 + 0.2).to.be.closeTo(0.3, 0.01)
expect('abc').to.match(/b/)
expect(refuse).to.throw()
expect(refuse).to.throw(TypeError, /such/)
expect(refuse).to.throw('no such')
double(2).should.equal(4)
double('a').should.not.equal('b')
double('a').should.be.a('string')
assert.equal(double(2), 4)
assert.isTrue(double(2) === 4)
assert.isTrue(double(2) > 3 && double(1) < 3)
assert.isFalse(double(2) === 5)
assert.isNull(null)
assert.isNotNull(double(1))
assert.isUndefined(undefined)
assert.isDefined(double(1))
assert.deepEqual([double(1)], [2])
assert.notDeepEqual([1], [2])
assert.include([1, 2], 2)
assert.notInclude([1, 2], 3)
assert.isAbove(double(2), 3)
assert.isAtLeast(double(2), 4)
assert.isAtMost(double(2), 4)
assert.isArray([1])
assert.isString('a')
assert.isNotArray('a')
assert.typeOf('a', 'string')
assert.instanceOf(new Date(), Date)
assert.lengthOf([1, 2], 2)
assert.property({ a: 1 }, 'a')
assert.match('abc', /b/)
assert.throws(refuse)
assert.throws(refuse, TypeError)
assert.doesNotThrow(() => double(1))
assert.sameMembers([1, 2], [2, 1])
assert.isEmpty([])
"""
NODE = """\
assert(double(2) === 4)
assert(double(2) == 4, 'message')
assert(double(2))
assert(!double(0))
assert(double(2) === 5 || double(1) === 2)
assert(double(2) !== 5)
assert(double(2) >= 4)
assert([1].includes(1))
assert.ok(double(2) === 4)
assert.equal(double(2), 4)
assert.strictEqual(4, double(2))
assert.strictEqual(double(2), double(2))
assert.strictEqual(LIMITS, LIMITS)
assert.strict.equal(double('a'), 'aa')
assert.deepEqual([double(1)], [2])
assert.deepStrictEqual({ a: double(1) }, { a: 2 })
assert.deepStrictEqual(LIMITS, { ...LIMITS })
assert.notEqual(double(2), 5)
assert.notStrictEqual({}, {})
assert.notDeepStrictEqual({ a: 1 }, { a: 2 })
assert.match('abc', /b/)
assert.doesNotMatch('abc', /x/)
assert.throws(() => refuse(), TypeError)
assert.throws(() => refuse(), { message: 'no such thing' })
assert.doesNotThrow(() => double(1))
await assert.rejects(fails(), /such/)
await assert.rejects(() => fails())
await assert.doesNotReject(later(1))
assert.ifError(null)
strictEqual(double(2), 4)
deepStrictEqual([double(1)], [2])
throws(refuse, /such/)
eq(double(2), 4)
"""
TAPE = """\
t.equal(double(2), 4)
t.equals(double(2), 4, 'message')
t.notEqual(double(2), 5)
t.ok(double(2))
t.ok(double(2) === 4)
t.notOk(double(0))
t.true(double(2) === 4)
t.false(double(2) === 5)
t.deepEqual({ a: double(1) }, { a: 2 })
t.same([double(1)], [2])
t.notDeepEqual([1], [2])
t.is(double(2), 4)
t.throws(refuse)
t.throws(refuse, /such/)
t.doesNotThrow(() => double(1))
t.error(null)
t.match('abc', /b/)
t.doesNotMatch('abc', /x/)
"""
GO = """\
if double(2) != 4 { t.Errorf("got %d", double(2)) }
if got := double(2); got != 4 { t.Fatal(got) }
if got, want := double(2), 4; got != want { t.Errorf("%d %d", got, want) }
if 4 != double(2) { t.Fatal("no") }
if !(double(2) == 4) { t.Fatal("no") }
if double(2) == 5 { t.Fatal("no") }
if double(2) < 3 { t.Fatal("no") }
if double(2) >= 5 { t.Fatal("no") }
if double(1) != 2 || double(2) != 4 { t.Fatal("no") }
if double(1) != 2 && double(2) != 4 { t.Fatal("no") }
if name("a") != "aa" { t.Fatalf("no %s", name("a")) }
if name("a") != `aa` { t.Fatal("no") }
if half(1) != 0.5 { t.Fatal("no") }
if small(100) != 100 { t.Fatal("no") }
if small(100) != uint8(100) { t.Fatal("no") }
if yes() != true { t.Fatal("no") }
if !yes() { t.Fatal("no") }
if 'a' != rune(name("a")[0]) { t.Fatal("no") }
if !reflect.DeepEqual(list(), []int{1, 2}) { t.Fatal("no") }
if !reflect.DeepEqual(list(), list()) { t.Fatal("no") }
if err := refuse(); err == nil { t.Fatal("no error") }
if err := refuse(); !errors.Is(err, errNo) { t.Fatal("no error") }
if err := refuse(); err != nil { if err.Error() != "no such thing" { t.Fatal("no") } }
if _, err := fine(); err != nil { t.Fatal(err) }
if diff := diff(double(2), 4); diff != "" { t.Error(diff) }
if double(2) == 5 { t.Log("no") } else if double(2) != 4 { t.Fatal("no") }
for _, tt := range []struct{ in, want int }{{1, 2}, {2, 4}} {\\n\\tt.Run("case", func(t *testing.T) {\\n\\t\\tif got := double(tt.in); got != tt.want {\\n\\t\\t\\tt.Errorf("%d", got)\\n\\t\\t}\\n\\t})\\n\\t}
check(t, double(2))
deeply(t, double(2))
if double(2) != -4+8 { t.Fatal("no") }
if list()[0] != 1 {\\n\\t\\tt.Helper()\\n\\t\\tt.FailNow()\\n\\t}
assert.Equal(t, 4, double(2))
assert.Equal(t, double(2), double(2))
assert.Equal(t, []int{1, 2}, list(), "message %d", 1)
assert.NotEqual(t, 5, double(2))
assert.True(t, yes())
assert.False(t, !yes())
require.NoError(t, nil)
require.Error(t, refuse())
assert.Nil(t, nil)
assert.Len(t, list(), 2)
assert.Equalf(t, 4, double(2), "message")
a := assert.New(t); a.Equal(4, double(2))
if !assert.Equal(t, 4, double(2)) { return }
"""
RUST = """\
assert_eq!(double(2), 4);
assert_eq!(4, double(2), "message {}", 1);
assert_eq!(double(-2), -4);
assert_eq!(small(100), 100u8);
assert_eq!(name("a"), "aa");
assert_eq!(name("a"), "aa".to_string());
assert_eq!(name("a"), String::from("aa"));
assert_eq!(Some(double(2)), Some(4));
assert_eq!(list(), vec![1, 2]);
assert_eq!(list(), [1, 2]);
assert_eq!((double(1), double(2)), (2, 4));
assert_eq!(double(2), double(2));
assert_eq!(half(1.0), 0.5);
assert_eq!('a', first("a"));
assert_eq!(double(2) == 4, true);
assert_eq!(list().iter().map(|x| x * 2).collect::<Vec<i32>>(), vec![2, 4]);
assert_eq!(std::collections::HashMap::<i32, i32>::new().len(), 0);
assert_ne!(double(2), 5);
assert!(double(2) == 4);
assert!(double(2) > 3, "message");
assert!(double(2) == 4 && double(1) == 2);
assert!(!name("a").is_empty());
assert!(matches!(refuse(), Err(_)));
assert!(refuse().is_err());
std::assert_eq!(double(2), 4);
assert_eq!(\\n        double(2), // the comment, 5\\n        4,\\n    );
match double(2) { 4 => assert_eq!(double(1), 2), _ => panic!("no") }
for (x, want) in [(1, 2), (2, 4)] { assert_eq!(double(x), want); }
check(double(2));
deeply(double(2));
assert_eq!(refuse().unwrap_err(), "no such thing");
if double(2) == 4 { assert!(double(1) == 2) }
"""
GO_HEAD = """\
package shop

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"example.com/go/shop/assert"
	"example.com/go/shop/require"
)

var errNo = errors.New("no such thing")

func double(x int) int         { return x * 2 }
func half(x int) float64       { return float64(x) / 2 }
func name(x string) string     { return x + x }
func small(x uint8) uint8      { return x }
func yes() bool                { return true }
func list() []int              { return []int{1, 2} }
func refuse() error            { return errNo }
func fine() (int, error)       { return 1, nil }
func diff(a, b int) string {
	if a == b {
		return ""
	}
	return fmt.Sprint(a, b)
}
func check(t *testing.T, x int) {
	t.Helper()
	if x != 4 {
		t.Errorf("got %d", x)
	}
}
func deeply(t *testing.T, x int) { check(t, x) }

var _ = reflect.DeepEqual
var _ = require.NoError

"""
RUST_HEAD = """\
pub fn double(x: i32) -> i32 { x * 2 }
pub fn small(x: u8) -> u8 { x }
pub fn half(x: f64) -> f64 { x / 2.0 }
pub fn name(x: &str) -> String { format!("{x}{x}") }
pub fn first(x: &str) -> char { x.chars().next().unwrap() }
pub fn list() -> Vec<i32> { vec![1, 2] }
pub fn refuse() -> Result<i32, String> { Err("no such thing".into()) }

#[cfg(test)]
"""
RUST_TAIL = """\
    fn check(x: i32) { assert_eq!(x, 4); }
    fn deeply(x: i32) { check(x) }
    #[test]
    #[should_panic]
    fn panics() {
        refuse().unwrap();
    }
    #[test]
    #[should_panic(expected = "no such")]
    fn panics_with() {
        refuse().unwrap();
    }
    #[test]
    fn result() -> Result<(), String> {
        let x = Ok::<i32, String>(double(2))?;
        assert_eq!(x, 4);
        Ok(())
    }
"""
SCRIPT_HEAD = """\
const LIMITS = { a: 1 }
function double(x) { return x + x }
const later = async (x) => x
const fails = async () => { throw new TypeError('no such thing') }
function refuse() { throw new TypeError('no such thing') }
"""
JEST_HEAD = "const check = (x) => { expect(x).toBe(4) }\nconst deeply = (x) => check(x)\n"
CHAI_HEAD = "const { expect, assert, should } = require('chai')\nshould()\n"
NODE_HEAD = """\
const assert = require('assert')
const { strictEqual, deepStrictEqual, throws, strictEqual: eq } = assert
"""
C = """\
assert(twice(2) == 4);
assert(4 == twice(2));
assert(twice(2) != 5);
assert(twice(2) > 3);
assert(twice(2));
assert(!twice(0));
assert(twice(2) == 4 && twice(1) == 2);
assert(strcmp(name(), "shop") == 0);
assert(!strcmp(name(), "shop"));
assert(half(1) == 0.5);
assert(name()[0] == 's');
if (twice(2) != 4) return 1;
if (twice(2) != 4) { puts("no"); return 1; }
if (!(twice(2) == 4)) exit(1);
if (twice(2) == 5) return -1;
if (strcmp(name(), "shop")) return 1;
if (!twice(2)) { failed++; }
if (twice(2) == 5) return 1; else if (twice(2) != 4) return 2;
CHECK(twice(2) == 4);
REQUIRE(twice(2) == twice(2));
CHECK_FALSE(twice(2) == 5);
EXPECT_EQ(4, twice(2));
EXPECT_EQ(twice(2), twice(2));
ASSERT_NE(5, twice(2));
ASSERT_TRUE(twice(2) == 4);
ASSERT_FALSE(twice(0));
ASSERT_LT(twice(2), 5);
ASSERT_GE(twice(2), 4);
ASSERT_STREQ("shop", name());
ASSERT_STREQ(name(), name());
EXPECT_NEAR(half(1), 0.5, 0.01);
TEST_ASSERT_EQUAL(4, twice(2));
TEST_ASSERT_EQUAL_INT(twice(2), twice(2));
TEST_ASSERT_EQUAL_STRING("shop", name());
TEST_ASSERT_TRUE(twice(2) == 4);
TEST_ASSERT_NULL(NULL);
TEST_ASSERT_NOT_NULL(name());
assert_int_equal(twice(2), 4);
assert_int_equal(twice(2), twice(2));
assert_string_equal(name(), "shop");
check_it(twice(2));
if (twice(1) == 2) ASSERT_EQ(4, twice(2)); else return 3;
"""
C_HEAD = """\
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The macros of test frameworks, with the same arguments. */
#define MUST(x) do { if (!(x)) { printf("%s\\n", #x); exit(9); } } while (0)
#define CHECK(x) MUST(x)
#define REQUIRE(x) MUST(x)
#define CHECK_FALSE(x) MUST(!(x))
#define EXPECT_EQ(a, b) MUST((a) == (b))
#define EXPECT_NE(a, b) MUST((a) != (b))
#define ASSERT_EQ(a, b) MUST((a) == (b))
#define ASSERT_NE(a, b) MUST((a) != (b))
#define ASSERT_LT(a, b) MUST((a) < (b))
#define ASSERT_GE(a, b) MUST((a) >= (b))
#define ASSERT_TRUE(x) MUST(x)
#define EXPECT_TRUE(x) MUST(x)
#define ASSERT_FALSE(x) MUST(!(x))
#define ASSERT_STREQ(a, b) MUST(!strcmp((a), (b)))
#define ASSERT_STRNE(a, b) MUST(strcmp((a), (b)))
#define EXPECT_NEAR(a, b, d) MUST((a) - (b) < (d) && (b) - (a) < (d))
#define TEST_ASSERT(x) MUST(x)
#define TEST_ASSERT_TRUE(x) MUST(x)
#define TEST_ASSERT_EQUAL(a, b) MUST((a) == (b))
#define TEST_ASSERT_EQUAL_INT(a, b) MUST((a) == (b))
#define TEST_ASSERT_EQUAL_STRING(a, b) MUST(!strcmp((a), (b)))
#define TEST_ASSERT_NULL(a) MUST((a) == NULL)
#define TEST_ASSERT_NOT_NULL(a) MUST((a) != NULL)
#define assert_int_equal(a, b) MUST((a) == (b))
#define assert_int_not_equal(a, b) MUST((a) != (b))
#define assert_string_equal(a, b) MUST(!strcmp((a), (b)))
#define assert_true(x) MUST(x)

static int failed;
static int twice(int x) { return x * 2; }
static double half(int x) { return x / 2.0; }
static const char *name(void) { return "shop"; }
static void check_it(int x) { assert(x == 4); }

"""
JAVA = """\
assertEquals(4, twice(2));
assertEquals(4, twice(2), "message");
assertEquals(twice(2), twice(2));
assertEquals("shop", name());
assertEquals(name(), name());
assertEquals(4L, (long) twice(2));
assertEquals(0.5, half(1), 0.001);
assertEquals(half(1), half(1), 0.001);
assertEquals(0.5, half(1));
assertEquals('s', name().charAt(0));
assertEquals(List.of(1, 2), list());
assertEquals(list(), list());
assertEquals(null, missing());
assertEquals(true, twice(2) == 4);
assertArrayEquals(new int[] {1, 2}, array());
assertIterableEquals(List.of(1, 2), list());
assertNotEquals(5, twice(2));
assertTrue(twice(2) == 4);
assertTrue(twice(2) > 3, "message");
assertTrue(name().startsWith("s"));
assertTrue(!list().isEmpty());
assertFalse(list().isEmpty());
assertNull(missing());
assertNotNull(name());
assertSame(SHOP, SHOP);
String same = SHOP; assertNotSame(same, new Object());
assertThrows(IllegalStateException.class, () -> refuse());
IllegalStateException e = assertThrows(IllegalStateException.class, () -> { refuse(); });
assertDoesNotThrow(() -> twice(2));
assertInstanceOf(String.class, name());
assertAll(() -> assertEquals(4, twice(2)));
Assertions.assertEquals(4, twice(2));
if (twice(2) == 4) assertEquals(2, twice(1));
for (int x : List.of(1, 2)) { assertEquals(x * 2, twice(x)); }
assert twice(2) == 4;
assertThat(twice(2)).isEqualTo(4);
assertThat(twice(2)).isEqualTo(twice(2));
assertThat(twice(2)).isNotEqualTo(5);
assertThat(twice(2)).isGreaterThan(3);
assertThat(null).isNull();
assertThat(twice(2) == 4).isTrue();
checkIt(twice(2));
"""
JAVA_HEAD = """\
package shop;

import static org.junit.jupiter.api.Assertions.*;
import static shop.Subject.assertThat;

import java.util.List;
import org.junit.jupiter.api.Assertions;
import org.junit.jupiter.api.Test;

class ShopTest {
    static final String SHOP = "shop";
    static int twice(int x) { return x * 2; }
    static double half(int x) { return x / 2.0; }
    static String name() { return SHOP; }
    static Object missing() { return null; }
    static List<Integer> list() { return List.of(1, 2); }
    static int[] array() { return new int[] {1, 2}; }
    static void refuse() { throw new IllegalStateException("no such thing"); }
    static void checkIt(int x) { assertEquals(4, x); }

"""
JAVA_SUBJECT = """\
package shop;

import org.junit.jupiter.api.Assertions;

/** The methods of AssertJ that the samples call. */
class Subject {
    final Object it;
    Subject(Object it) { this.it = it; }
    Subject isEqualTo(Object x) { Assertions.assertEquals(x, it); return this; }
    Subject isNotEqualTo(Object x) { Assertions.assertNotEquals(x, it); return this; }
    Subject isGreaterThan(int x) { Assertions.assertTrue((Integer) it > x); return this; }
    Subject isLessThanOrEqualTo(int x) { Assertions.assertTrue((Integer) it <= x); return this; }
    Subject isNull() { Assertions.assertNull(it); return this; }
    Subject isNotNull() { Assertions.assertNotNull(it); return this; }
    Subject isTrue() { Assertions.assertEquals(true, it); return this; }
    Subject isFalse() { Assertions.assertEquals(false, it); return this; }
    static Subject assertThat(Object it) { return new Subject(it); }
}
"""
