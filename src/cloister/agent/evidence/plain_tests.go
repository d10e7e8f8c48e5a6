package PACKAGE

import (
	jsonTOKEN "encoding/json"
	fmtTOKEN "fmt"
	osTOKEN "os"
	timeTOKEN "time"
)

// TTOKEN stands in for testing.T: the same tests run in an ordinary program, and inside `go test` for comparison.
type TTOKEN struct {
	name    string
	failed  bool
	skipped bool
	why     string
	last    []func()
}

type stopTOKEN struct{}

func (t *TTOKEN) Helper()                      {}
func (t *TTOKEN) Parallel()                    {}
func (t *TTOKEN) Name() string                 { return t.name }
func (t *TTOKEN) Failed() bool                 { return t.failed }
func (t *TTOKEN) Skipped() bool                { return t.skipped }
func (t *TTOKEN) Log(all ...any)               {}
func (t *TTOKEN) Logf(text string, all ...any) {}
func (t *TTOKEN) Fail()                        { t.failed = true }
func (t *TTOKEN) FailNow()                     { t.failed = true; panic(stopTOKEN{}) }
func (t *TTOKEN) SkipNow()                     { t.skipped = true; panic(stopTOKEN{}) }
func (t *TTOKEN) Skip(all ...any)              { t.SkipNow() }
func (t *TTOKEN) Skipf(_ string, all ...any)   { t.SkipNow() }
func (t *TTOKEN) Error(all ...any)             { t.why += fmtTOKEN.Sprintln(all...); t.Fail() }
func (t *TTOKEN) Errorf(s string, all ...any)  { t.why += fmtTOKEN.Sprintf(s, all...); t.Fail() }
func (t *TTOKEN) Fatal(all ...any)             { t.why += fmtTOKEN.Sprintln(all...); t.FailNow() }
func (t *TTOKEN) Fatalf(s string, all ...any)  { t.why += fmtTOKEN.Sprintf(s, all...); t.FailNow() }
func (t *TTOKEN) Cleanup(f func())             { t.last = append(t.last, f) }
func (t *TTOKEN) Setenv(name, value string)    { osTOKEN.Setenv(name, value) }

func (t *TTOKEN) TempDir() string {
	place, err := osTOKEN.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	return place
}

func (t *TTOKEN) Run(name string, f func(*TTOKEN)) bool {
	part := &TTOKEN{name: t.name + "/" + name}
	part.try(f)
	t.failed = t.failed || part.failed
	t.why += part.why
	return !part.failed
}

func (t *TTOKEN) try(f func(*TTOKEN)) {
	defer func() {
		if found := recover(); found != nil {
			if _, ok := found.(stopTOKEN); !ok {
				t.failed = true
				t.why += fmtTOKEN.Sprint(found)
			}
		}
		for at := len(t.last) - 1; at >= 0; at-- {
			t.last[at]()
		}
	}()
	f(t)
}

func allTOKEN(out string, names []string, tests []func(*TTOKEN)) {
	text := ""
	for at, one := range tests {
		t := &TTOKEN{name: names[at]}
		begin := timeTOKEN.Now()
		t.try(one)
		status := "ok"
		if t.failed {
			status = "failed"
		}
		if t.skipped || timeTOKEN.Since(begin) > 5*timeTOKEN.Second {
			status = "unknown"
		}
		line, _ := jsonTOKEN.Marshal([]string{t.name, status, t.why})
		text += string(line) + "\n"
	}
	osTOKEN.WriteFile(out, []byte(text), 0o600)
}
