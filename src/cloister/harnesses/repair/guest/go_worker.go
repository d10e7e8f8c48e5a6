// The worker of a `go test` suite, inside the sandbox. It speaks the protocol of python_worker.py.
// It works in a private copy: a candidate is written there, and `go test` runs the tests that are asked for.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type object = map[string]any

type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

type result struct {
	status, output string
	seconds        float64
}

type stage struct {
	names       []string
	each, whole float64
}

func (one *stage) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&one.names, &one.each, &one.whole})
}

type request struct {
	Op, Path, Text string
	Args, Tests    []string
	Seconds        float64
	Trace          bool
	Stages         []stage
}

var (
	root, work, tree string
	flags, patterns  []string
	folders          = map[string]string{} // import path to directory
	imports          = map[string]string{} // and back
	began            = 10.0                // seconds of the first run
	place            = regexp.MustCompile(`([^\s:()]{1,300}\.go):(\d{1,7})`)
)

func send(message object) {
	data, _ := json.Marshal(message)
	os.Stdout.Write(append(data, '\n'))
}

func relative(path string) string {
	name, err := filepath.Rel(tree, path)
	if err != nil || strings.HasPrefix(name, "..") {
		return ""
	}
	return filepath.ToSlash(name)
}

func copied() error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		name, _ := filepath.Rel(root, path)
		target := filepath.Join(tree, name)
		if entry.IsDir() {
			if entry.Name() == ".git" || entry.Name() == "node_modules" {
				return filepath.SkipDir
			}
			return os.MkdirAll(target, 0o755)
		}
		if entry.Type()&fs.ModeSymlink != 0 {
			link, _ := os.Readlink(path)
			return os.Symlink(link, target)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		return os.WriteFile(target, data, 0o644)
	})
}

// Runs a command in the copy and kills all of it after its time.
func ran(folder string, seconds float64, words ...string) ([]byte, bool) {
	command := exec.Command(words[0], words[1:]...)
	command.Dir = folder
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	if command.Start() != nil {
		return nil, false
	}
	late := false
	timer := time.AfterFunc(time.Duration(seconds*float64(time.Second)), func() {
		late = true
		syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
	})
	command.Wait()
	timer.Stop()
	return out.Bytes(), late
}

func split(id string) (string, string) {
	folder, name, _ := strings.Cut(id, "::")
	return folder, name
}

// Runs tests, all of them if `names` is empty; the results by their ids, and what packages without results said.
func tested(names []string, seconds float64) (map[string]result, map[string]string, bool) {
	words := append([]string{"go", "test", "-json", "-vet=off"}, flags...)
	if len(names) == 0 {
		words = append(words, patterns...)
	} else {
		seen, tests, every := map[string]bool{}, []string{}, false
		for _, id := range names {
			folder, name := split(id)
			if !seen[folder] {
				words = append(words, "./"+folder)
				seen[folder] = true
			}
			tests = append(tests, regexp.QuoteMeta(name))
			every = every || name == ""
		}
		if !every {
			words = append(words, "-run", "^("+strings.Join(tests, "|")+")$")
		}
	}
	data, late := ran(tree, seconds, words...)
	found, said := map[string]result{}, map[string]string{}
	failed, stray := map[string]bool{}, ""
	for _, line := range bytes.Split(data, []byte("\n")) {
		var one event
		if json.Unmarshal(line, &one) != nil || one.Action == "" {
			stray += string(line) + "\n"
			continue
		}
		folder, top := folders[one.Package], strings.SplitN(one.Test, "/", 2)[0]
		if one.Test == "" {
			said[folder] += one.Output
			if one.Action == "fail" {
				failed[folder] = true
			}
			continue
		}
		id := folder + "::" + top
		was := found[id]
		was.output += one.Output
		if one.Test == top && (one.Action == "pass" || one.Action == "fail" || one.Action == "skip") {
			was.status = map[string]string{"pass": "passed", "fail": "failed", "skip": "skipped"}[one.Action]
			was.seconds = one.Elapsed
		}
		found[id] = was
	}
	for id, one := range found {
		folder, _ := split(id)
		if one.status == "" { // a panic or the time limit ended the whole process
			one.status = "failed"
			found[id] = one
		}
		delete(failed, folder)
	}
	broken := map[string]string{}
	for folder := range failed {
		broken[folder] = stray + said[folder]
	}
	return found, broken, late
}

func frames(text, folder string) [][]any {
	found := [][]any{}
	for _, match := range place.FindAllStringSubmatch(text, 200) {
		path := match[1]
		if !filepath.IsAbs(path) {
			if inside := filepath.Join(tree, folder, path); exists(inside) {
				path = inside
			} else {
				path = filepath.Join(tree, path)
			}
		}
		line, _ := strconv.Atoi(match[2])
		if name := relative(path); name != "" && exists(path) {
			found = append([][]any{{name, line}}, found...)
		}
	}
	if len(found) > 20 {
		found = found[len(found)-20:]
	}
	return found
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func short(text string, most int) string {
	if len(text) > most {
		return text[:most]
	}
	return text
}

func open(given request) {
	for _, arg := range given.Args {
		if strings.HasPrefix(arg, "-") {
			flags = append(flags, arg)
		} else {
			patterns = append(patterns, arg)
		}
	}
	tree = filepath.Join(work, "tree")
	copied()
	listed, _ := ran(tree, 120, append([]string{"go", "list", "-e", "-f", "{{.ImportPath}}\t{{.Dir}}"}, patterns...)...)
	modules := []string{}
	for _, line := range strings.Split(string(listed), "\n") {
		name, folder, found := strings.Cut(line, "\t")
		if !found {
			continue
		}
		folders[name], imports[relative(folder)] = relative(folder), name
		files, _ := filepath.Glob(filepath.Join(folder, "*.go"))
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				modules = append(modules, relative(file))
			}
		}
	}
	start := time.Now()
	found, broken, _ := tested(nil, 300)
	began = time.Since(start).Seconds()
	names, errors := []string{}, []object{}
	for id := range found {
		names = append(names, id)
	}
	sort.Strings(names)
	for folder, text := range broken {
		errors = append(errors, object{"id": folder, "message": short(text, 4000), "frames": frames(text, folder)})
	}
	send(object{"op": "ready", "tests": names, "errors": errors, "modules": modules})
}

// The lines of a profile that ran.
func lines(profile string) map[string][]int {
	found := map[string]map[int]bool{}
	data, _ := os.ReadFile(profile)
	for _, line := range strings.Split(string(data), "\n") {
		name, rest, ok := strings.Cut(line, ".go:")
		var first, last, column, statements, count int
		if !ok || strings.HasPrefix(line, "mode:") {
			continue
		}
		if n, _ := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &first, &column, &last, &column, &statements, &count); n < 6 || count == 0 {
			continue
		}
		at := strings.LastIndex(name, "/")
		path := filepath.ToSlash(filepath.Join(folders[name[:max(at, 0)]], name[at+1:]+".go"))
		if found[path] == nil {
			found[path] = map[int]bool{}
		}
		for one := first; one <= last && one < first+500; one++ {
			found[path][one] = true
		}
	}
	sorted := map[string][]int{}
	for path, seen := range found {
		for line := range seen {
			sorted[path] = append(sorted[path], line)
		}
		sort.Ints(sorted[path])
	}
	return sorted
}

func max(a, b int) int {
	if a > b {
		return a
	}
	return b
}

func cover(given request) {
	end := time.Now().Add(time.Duration(given.Seconds * float64(time.Second)))
	if !given.Trace {
		found, _, _ := tested(given.Tests, given.Seconds)
		for _, id := range given.Tests {
			if one, ok := found[id]; ok {
				report(id, one, nil)
			}
		}
		send(object{"op": "done"})
		return
	}
	programs := map[string]string{}
	for index, id := range given.Tests {
		if time.Now().After(end) {
			break
		}
		folder, name := split(id)
		if programs[folder] == "" {
			programs[folder] = filepath.Join(work, "cover"+strconv.Itoa(index))
			ran(tree, 300, "go", "test", "-c", "-vet=off", "-cover", "-coverpkg=./...", "-o", programs[folder], "./"+folder)
		}
		profile := filepath.Join(work, "profile")
		os.Remove(profile)
		start := time.Now()
		out, late := ran(filepath.Join(tree, folder), 10, programs[folder], "-test.run", "^"+regexp.QuoteMeta(name)+"$", "-test.coverprofile", profile, "-test.v")
		one := result{"passed", string(out), time.Since(start).Seconds()}
		if late {
			one.status = "late"
		} else if bytes.Contains(out, []byte("--- FAIL")) || bytes.Contains(out, []byte("panic:")) {
			one.status = "failed"
		}
		report(id, one, lines(profile))
	}
	send(object{"op": "done"})
}

func report(id string, one result, covered map[string][]int) {
	folder, _ := split(id)
	error, message, found := "", "", [][]any{}
	if one.status != "passed" {
		error, message, found = "failed", short(one.output, 4000), frames(one.output, folder)
	}
	if covered == nil {
		covered = map[string][]int{}
	}
	send(object{"op": "test", "id": id, "status": one.status, "seconds": one.seconds, "lines": covered, "frames": found, "error": error, "message": message})
}

func try(given request) {
	full := filepath.Join(tree, given.Path)
	original, _ := os.ReadFile(full)
	os.WriteFile(full, []byte(given.Text), 0o644)
	defer os.WriteFile(full, original, 0o644)
	results, at, why := map[string]string{}, 0, ""
	for index, one := range given.Stages {
		at = index
		found, broken, late := tested(one.names, 5+3*began+one.whole)
		good := true
		for _, id := range one.names {
			status := found[id].status
			if _, bad := broken[id]; !strings.Contains(id, "::") && !bad && !late {
				status = "passed" // a package that could not be built before
				for test, was := range found {
					if folder, _ := split(test); folder == id && was.status == "failed" {
						status = "failed"
					}
				}
			}
			if status == "" {
				status = "failed"
			}
			results[id] = status
			good = good && status == "passed"
		}
		for _, text := range broken {
			why = short(text, 300)
		}
		if !good {
			break
		}
	}
	send(object{"op": "tried", "results": results, "stage": at, "why": why})
}

func main() {
	root, _ = os.Getwd()
	work = os.Args[1]
	defer os.RemoveAll(work)
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := input.ReadBytes('\n')
		var given request
		if err != nil || json.Unmarshal(line, &given) != nil {
			return
		}
		switch given.Op {
		case "open":
			open(given)
		case "cover":
			cover(given)
		case "try":
			try(given)
		case "call":
			send(object{"op": "called", "digests": [][]string{}})
		}
	}
}
