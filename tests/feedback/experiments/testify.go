// Package PKG has the functions of testify that the sample tests call, with the same signatures.
package PKG

import "reflect"

type T interface {
	Errorf(format string, args ...interface{})
	Fatalf(format string, args ...interface{})
}

type Assertions struct{ t T }

func New(t T) *Assertions { return &Assertions{t} }

func (a *Assertions) Equal(want, got interface{}, m ...interface{}) bool { return Equal(a.t, want, got, m...) }

func is(t T, ok bool) bool {
	if !ok {
		t.FAIL("not as it should be")
	}
	return ok
}

func Equal(t T, want, got interface{}, m ...interface{}) bool    { return is(t, reflect.DeepEqual(want, got)) }
func NotEqual(t T, want, got interface{}, m ...interface{}) bool { return is(t, !reflect.DeepEqual(want, got)) }
func Equalf(t T, want, got interface{}, f string, m ...interface{}) bool {
	return is(t, reflect.DeepEqual(want, got))
}
func NotEqualf(t T, want, got interface{}, f string, m ...interface{}) bool {
	return is(t, !reflect.DeepEqual(want, got))
}
func True(t T, x bool, m ...interface{}) bool          { return is(t, x) }
func False(t T, x bool, m ...interface{}) bool         { return is(t, !x) }
func NoError(t T, err error, m ...interface{}) bool    { return is(t, err == nil) }
func Error(t T, err error, m ...interface{}) bool      { return is(t, err != nil) }
func Nil(t T, x interface{}, m ...interface{}) bool    { return is(t, x == nil) }
func NotNil(t T, x interface{}, m ...interface{}) bool { return is(t, x != nil) }
func Len(t T, x interface{}, n int, m ...interface{}) bool {
	return is(t, reflect.ValueOf(x).Len() == n)
}
