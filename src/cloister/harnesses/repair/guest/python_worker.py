"""The warm process of a Python suite, inside the sandbox. Needs Python 3.8 and nothing else.

The host sends it after `python_probes.py` and `python_runners.py`, as one text.

It copies the repository, collects the tests once, and forks for each candidate. The child replaces the code of the
changed functions in memory and runs the requested tests. Where that cannot be done (module level, other free
variables), a child that has not imported the repository reads the candidate from the private copy instead.

One JSON object per line, on stdin and stdout:

    {"op": "open", "runner": "pytest", "args": [...]}                        -> {"op": "ready", "tests": [...], "errors": [...]}
    {"op": "cover", "tests": [...], "seconds": 20, "each": 1}               -> {"op": "test", ...} …, {"op": "done"}
    {"op": "try", "path": "a.py", "text": "…", "stages": [[[id, …], cpu seconds of each, seconds of all], …], "cold": false}  -> {"op": "tried", ...}
    {"op": "call", "path": …, "text": …, "tests": [...]}                    -> {"op": "called", "digests": [...]}
"""

import __future__

import ast
import contextlib
import gc
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import types

ROOT = os.path.realpath(os.getcwd())
MEMORY = 2 << 30
SOON = 0.15
"""The limit of a test, in seconds of processor time, after another one ran over its limit."""
PATIENCE = 10
"""How much longer a test may wait than compute."""
SKIPPED = set(".git .hg node_modules __pycache__ .tox .nox .mypy_cache .pytest_cache .ruff_cache".split())


def send(fd, **message):
    data = (json.dumps(message) + "\n").encode()
    while data:
        data = data[os.write(fd, data) :]


def lines_from(fd, deadline=None):
    """Yield the lines of a pipe until it ends or the deadline passes."""
    rest = b""
    while True:
        if deadline is not None:
            left = deadline() - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                return
        data = os.read(fd, 65536)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


# The private copy


def copied(work):
    """Copy the repository; virtual environments and node_modules are links."""
    target = os.path.join(work, "tree")
    linked = []

    def ignore(folder, names):
        found = {name for name in names if name in SKIPPED}
        for name in set(names) & LINKED:
            if os.path.isdir(os.path.join(folder, name)):
                found.add(name)
                linked.append(os.path.relpath(os.path.join(folder, name), ROOT))
        return found

    shutil.copytree(ROOT, target, symlinks=True, ignore=ignore, ignore_dangling_symlinks=True)
    for name in linked:
        os.symlink(os.path.join(ROOT, name), os.path.join(target, name))
    return os.path.realpath(target)


def moved(entry, target):
    real = os.path.realpath(entry)
    if real == ROOT or real.startswith(ROOT + os.sep):
        if not set(os.path.relpath(real, ROOT).split(os.sep)) & LINKED:
            return os.path.join(target, os.path.relpath(real, ROOT)) if real != ROOT else target
    return entry


def enter(work):
    """Make this process work in a copy: its directory, its import path and that of the processes it starts."""
    target = copied(work)
    os.chdir(target)
    sys.path[:] = [moved(entry, target) if entry else target for entry in sys.path]
    given = os.environ.get("PYTHONPATH", "")
    if given:
        os.environ["PYTHONPATH"] = os.pathsep.join(moved(part, target) for part in given.split(os.pathsep))
    os.environ["PWD"] = target
    os.environ["PYTHONHASHSEED"] = "0"
    for name, module in list(sys.modules.items()):  # editable installs of setuptools
        mapping = getattr(module, "MAPPING", None)
        if name.startswith("__editable__") and isinstance(mapping, dict):
            for key, value in mapping.items():
                mapping[key] = moved(value, target)
    return target


# Children


def guarded(cpu, memory=MEMORY):
    """Bound this child: processor time, memory, no core file; its own session, so that all of it can be killed."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for kind, value in ((resource.RLIMIT_AS, used() + memory), (resource.RLIMIT_CORE, 0)):
        try:
            resource.setrlimit(kind, (value, value))
        except (ValueError, OSError):
            pass
    if cpu:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, cpu)


def used():
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return MEMORY


def forked(work, cpu, wall):
    """Run `work(fd)` in a child; yield the lines it writes until it ends or the wall-clock limit passes."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            guarded(cpu)
            work(writing)
        except BaseException as error:
            try:
                send(writing, error=repr(error)[:MESSAGE])
            except OSError:
                pass
        finally:
            os._exit(0)
    os.close(writing)
    end = time.monotonic() + wall
    try:
        yield from lines_from(reading, lambda: end)
    finally:
        os.close(reading)
        for kill in (lambda: os.killpg(pid, signal.SIGKILL), lambda: os.kill(pid, signal.SIGKILL)):
            try:
                kill()
            except OSError:
                pass
        os.waitpid(pid, 0)


# What the collected process can do


def armed(each, again=0.1):
    """Set or clear the limits of one test: processor time, and `PATIENCE` times as much time on the clock."""
    signal.setitimer(signal.ITIMER_PROF, each, again)
    signal.setitimer(signal.ITIMER_REAL, each * PATIENCE, again)


class Server:
    """Answers requests with the collected tests. It runs in the process in which they were collected."""

    def __init__(self, inward, out, done):
        self.inward, self.out, self.done = inward, out, done
        self.files = {}

    def __call__(self, runner):
        self.runner = runner
        names = [name for name in runner.items if name]
        send(self.out, op="ready", tests=names, errors=runner.broken(), modules=modules())
        send(self.done, op="done")
        gc.collect()
        self.functions = {}
        for one in gc.get_objects():
            if isinstance(one, types.FunctionType):
                code = one.__code__
                self.functions.setdefault((code.co_filename, code.co_name, code.co_firstlineno), []).append(
                    one
                )
        gc.freeze()
        for line in lines_from(self.inward):
            request = json.loads(line)
            answer = getattr(self, request.pop("op"))(**request)
            send(self.done, op="done", cold=answer == "cold")
        os._exit(0)

    def cover(self, tests=None, seconds=20.0, each=1.0, trace=True, only=None):
        """Run tests one after another and report the lines of each. A child that is lost costs one test."""
        pending = list(self.runner.items) if tests is None else list(tests)
        pending = [name for name in pending if name and name in self.runner.items]
        end = time.monotonic() + seconds
        while pending and time.monotonic() < end:
            begun = 0
            tracer = (
                Tracer(only and {path: frozenset(lines) for path, lines in only.items()}) if trace else None
            )
            for line in forked(
                lambda fd: self.traced(fd, list(pending), each, tracer), 0, end - time.monotonic()
            ):
                message = json.loads(line)
                if message.get("op") == "test":
                    begun += 1
                    os.write(self.out, line + b"\n")
            if begun < len(pending) and time.monotonic() < end:
                send(self.out, op="test", id=pending[begun], status="late", seconds=each)
                begun += 1
            pending = pending[begun:]
        send(self.out, op="done", left=len(pending))

    def traced(self, fd, names, each, tracer):
        running, longest = True, 0.0
        self.runner.hurry(quiet=False)

        def late(number, frame):
            if running:
                raise Late()

        signal.signal(signal.SIGALRM, late)
        signal.signal(signal.SIGPROF, late)
        if tracer:
            threading.settrace(tracer)
            sys.settrace(tracer)
        spent, begun = time.process_time(), time.monotonic()
        armed(each)
        for name, status, error in self.runner_of(names):
            armed(0)
            lines = tracer.taken() if tracer else {}
            used, took = time.process_time() - spent, time.monotonic() - begun
            if isinstance(error, Late) or used > each:
                status, each = "late", min(each, max(SOON, 5 * longest))
            else:
                longest = max(longest, used)
            send(
                fd,
                op="test",
                id=name,
                status=status,
                seconds=round(max(used, took / PATIENCE), 4),
                lines=lines,
                frames=frames_of(error),
                error=type(error).__name__ if error else "",
                message=said(error),
            )
            if tracer:
                sys.settrace(tracer)  # an exception out of the tracer has switched it off
            spent, begun = time.process_time(), time.monotonic()
            armed(each)
        running = False

    def runner_of(self, names):
        return self.runner.run(names) if isinstance(self.runner, Pytest) else self.runner.each(names)

    def swaps(self, path, text):
        """The functions with the code that a candidate gives them; None if code that runs at import time is different."""
        full = os.path.join(os.getcwd(), path)
        if path not in self.files:
            self.files[path] = Source(full)
        old, new = self.files[path].compiled(text)
        pairs = []
        if not changed(old, new, pairs, True):
            return None
        found = [
            (function, code)
            for was, code in pairs
            for function in self.functions.get((full, was.co_name, was.co_firstlineno), [])
            if function.__code__.co_names == was.co_names and function.__code__.co_varnames == was.co_varnames
        ]
        return found if found or not pairs else None

    def attempt(self, path, text, stages):
        """Try a candidate in forks; the answer is "cold" if it needs a process that imports it."""
        try:
            swaps = self.swaps(path, text)
        except (SyntaxError, ValueError) as error:
            return send(self.out, op="tried", results={}, stage=-1, why=str(error)[:300])
        if swaps is None:
            return "cold"
        found, stage, ended = {}, 0, ""
        for stage, (names, each, whole) in enumerate(stages):

            def work(fd, names=names, each=each):
                for function, code in swaps:
                    function.__code__ = code
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                gc.disable()
                self.runner.hurry()
                armed(each)
                for name, status, _ in self.runner_of(names):
                    send(fd, id=name, status=status)
                    armed(each)

            got = {}
            for line in forked(work, each, whole):
                message = json.loads(line)
                if "id" in message:
                    got[message["id"]] = message["status"]
                    if stage and message["status"] == "failed":
                        break
                else:
                    ended = message.get("error", "")
            found.update(got)
            if len(got) < len(names) or any(status != "passed" for status in got.values()):
                break
        return send(self.out, op="tried", results=found, stage=stage, why=ended)

    def call(self, path, text, tests):
        """Digest what the file's functions return; the answer is "cold" if the change needs a process that imports it."""
        swaps = [] if text is None else self.swaps(path, text)
        if swaps is None:
            return "cold"

        def work(fd):
            for function, code in swaps:
                function.__code__ = code
            record(fd, self.runner, path, tests)

        return send(self.out, op="called", digests=digests(work))


def record(fd, runner, path, tests, limit=400):
    """Run tests; write what the file's functions return on inputs near those that they had."""
    recorder = Recorder(os.path.join(os.getcwd(), path), limit)
    sys.setprofile(recorder)
    for _ in runner.run(tests) if isinstance(runner, Pytest) else runner.each(tests):
        pass
    sys.setprofile(None)
    for key, digest in recorder.digests():
        send(fd, key=key, digest=digest)


def digests(work, collecting=0.0):
    cpu = 2.0 + 3 * collecting
    answers = (json.loads(line) for line in forked(work, cpu, cpu * 4 + 2))
    return [[answer["key"], answer["digest"]] for answer in answers if "key" in answer]


def modules():
    """The files of the repository that are imported."""
    here, found = os.getcwd() + os.sep, []
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None) or ""
        if name.startswith(here) and name.endswith(".py"):
            found.append(name[len(here) :])
    return sorted(name for name in set(found) if not set(name.split(os.sep)) & LINKED)


class Source:
    """A file as it was collected. Only the function around a change is compiled: that of a whole file takes long."""

    def __init__(self, full):
        with open(full, encoding="utf-8", newline="") as file:
            text = file.read()
        self.full, self.lines, self.old = full, text.split("\n"), {}
        whole = compile(text, full, "exec", dont_inherit=True)
        self.flags = whole.co_flags & sum(
            getattr(__future__, n).compiler_flag for n in __future__.all_feature_names
        )
        self.spans = []  # (first line, last line, what must stand above it)
        for node in ast.parse(text).body:
            self.add(node, "")
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    self.add(inner, "class %s:" % node.name)

    def add(self, node, above):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if not above or self.lines[first - 1].startswith((" ", "\t")) and first > 1:
                self.spans.append((first, node.end_lineno, above))

    def compiled(self, text):
        """The code before and after, of the smallest known part that contains the change."""
        new, old = text.split("\n"), self.lines
        most = min(len(old), len(new))
        head = next((i for i in range(most) if old[i] != new[i]), most)
        tail = next((i for i in range(most - head) if old[-1 - i] != new[-1 - i]), most - head)
        first, last = (head + 1, len(old) - tail) if head < len(old) - tail else (head, head)
        around = [span for span in self.spans if span[0] <= first and last <= span[1]]
        whole = (1, len(old), "")
        span = max(around, key=lambda span: span[0]) if around else whole
        try:
            return self.parts(new, *span)
        except SyntaxError:
            if span == whole or head < len(old) - tail:
                raise
            return self.parts(new, *whole)  # a line between two functions belongs to the second one

    def parts(self, new, start, end, above):
        if (start, end) not in self.old:
            self.old[start, end] = self.part(self.lines[start - 1 : end], start, above)
        return self.old[start, end], self.part(
            new[start - 1 : end + len(new) - len(self.lines)], start, above
        )

    def part(self, lines, start, above):
        before = "\n" * (start - 2) + above + "\n" if above else "\n" * (start - 1)
        return compile(before + "\n".join(lines) + "\n", self.full, "exec", self.flags, dont_inherit=True)


def said(error):
    if error is None:
        return ""
    try:
        return str(error)[:MESSAGE] + handled(error)
    except Exception:
        return ""


def handled(error):
    """The exceptions that were being handled: an `except` with a wrong type raises another one."""
    names = []
    while error.__context__ is not None and len(names) < 3:
        error = error.__context__
        names.append(type(error).__name__)
    return "".join(" while handling " + name for name in names)


def plain(code):
    """What a code object does, without the code objects inside it and without line numbers."""
    constants = tuple(
        (type(one).__name__, repr(one)) for one in code.co_consts if not isinstance(one, types.CodeType)
    )
    names = "code names varnames freevars cellvars flags exceptiontable argcount kwonlyargcount"
    return (constants, *(getattr(code, "co_" + name, b"") for name in names.split()))


def changed(old, new, swaps, importing):
    """Collect (old, new) code of changed functions; False if code that runs at import time is different."""
    inner_old = [one for one in old.co_consts if isinstance(one, types.CodeType)]
    inner_new = [one for one in new.co_consts if isinstance(one, types.CodeType)]
    same = plain(old) == plain(new) and len(inner_old) == len(inner_new)
    if importing and not same:
        return False
    if not importing and (not same or any(plain(a) != plain(b) for a, b in zip(inner_old, inner_new))):
        if len(old.co_freevars) != len(new.co_freevars):
            return False
    for a, b in zip(inner_old, inner_new):
        body = importing and not a.co_flags & 1  # not optimised: the body of a class
        if not changed(a, b, swaps, body):
            return False
    if not importing:
        if not same or any(x is not y for x, y in swaps if x in inner_old):
            swaps.append((old, new))
    return True


# The first process: it has imported the runner and no file of the repository


class First:
    def __init__(self, out):
        self.out = out
        self.count = 0

    def open(self, runner, args):
        self.work = tempfile.mkdtemp(prefix="repair-")
        self.tree = enter(self.work)
        if runner == "pytest":
            try:
                import pytest  # noqa: F401
            except ImportError:
                runner, args = "unittest", ["discover"]
        self.kind, self.main = RUNNERS[runner]
        if runner == "pytest":
            args = pytest_args(args)
        self.args = args
        for path in (os.getcwd(),):
            if path not in sys.path:
                sys.path.insert(0, path)
        inward, self.inward = os.pipe()
        self.done, done = os.pipe()
        began = time.monotonic()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.inward), os.close(self.done)
            self.collect(Server(inward, self.out, done), done)
        os.close(inward), os.close(done)
        self.answers = lines_from(self.done)
        next(self.answers, None)
        self.collecting = min(30.0, time.monotonic() - began)

    def collect(self, server, done):
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        runner = self.kind(server)
        try:
            self.main(self.args, runner)
            send(self.out, op="ready", tests=[], errors=runner.broken())
        except BaseException as error:
            send(
                self.out,
                op="ready",
                tests=[],
                errors=[{"id": "", "message": repr(error)[:MESSAGE], "frames": frames_of(error)}],
            )
        finally:
            os._exit(0)

    def args_for(self, names):
        """The arguments of a runner that collects just the files of these tests, if their names tell the files."""
        files = sorted({name.partition("::")[0] for name in names})
        if self.kind is not Pytest or not all(
            name.endswith(".py") and os.path.isfile(name) for name in files
        ):
            return self.args
        options = [
            arg for arg in self.args if arg.startswith("-") or not os.path.exists(arg.partition("::")[0])
        ]
        return [*options, *files]

    def ask(self, **request):
        """Pass a request on to the collected process; None if that is lost."""
        try:
            send(self.inward, **request)
            return json.loads(next(self.answers, b"null"))
        except OSError:
            return None

    def attempt(self, path, text, stages, cold=False):
        answer = {"cold": True} if cold else self.ask(op="attempt", path=path, text=text, stages=stages)
        if answer is None or answer.get("cold"):
            try:
                compile(text, path, "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                return send(self.out, op="tried", results={}, stage=-1, why=str(error)[:300])
            self.cold(path, text, stages)
        return None

    def call(self, path, text, tests):
        answer = self.ask(op="call", path=path, text=text, tests=tests)
        if answer and answer.get("cold"):

            def work(fd):
                def once(runner):
                    record(fd, runner, path, tests)
                    os._exit(0)

                self.main(self.args_for(tests), self.kind(once))

            with self.written(path, text):
                send(self.out, op="called", digests=digests(work, self.collecting))
        return answer

    def cold(self, path, text, stages):
        """Run the tests in a process that imports the candidate."""
        found, stage, why = {}, 0, ""
        with self.written(path, text):
            for stage, (names, each, whole) in enumerate(stages):
                got, why = self.afresh(names, each, whole)
                found.update(got)
                if any(got.get(name) != "passed" for name in names):
                    break
        send(self.out, op="tried", results=found, stage=stage, why=why)

    @contextlib.contextmanager
    def written(self, path, text):
        """The candidate in the copy, newer than what was compiled before."""
        full = os.path.join(self.tree, path)
        with open(full, encoding="utf-8", newline="") as file:
            original = file.read()
        before = os.stat(full)
        self.count += 1
        with open(full, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.utime(full, (before.st_atime, before.st_mtime + 10 * self.count))
        try:
            yield
        finally:
            with open(full, "w", encoding="utf-8", newline="") as file:
                file.write(original)
            os.utime(full, (before.st_atime, before.st_mtime))

    def afresh(self, names, each, whole):
        def work(fd):
            class Once:
                def __call__(self, runner):
                    broken = {one["id"] for one in runner.broken()}
                    for name in broken:
                        send(fd, id=name, status="failed")
                    wanted = [
                        name
                        for name in runner.items
                        if name and (name in names or name.partition("::")[0] in names)
                    ]
                    bad = set()
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    armed(each)
                    for name, status, _ in (
                        runner.run(wanted) if isinstance(runner, Pytest) else runner.each(wanted)
                    ):
                        send(fd, id=name, status=status)
                        armed(each)
                        if status == "failed":
                            bad.add(name.partition("::")[0])
                    for name in names:  # a whole file that could not be collected before
                        if name not in runner.items and name not in broken:
                            gathered = any(one.partition("::")[0] == name for one in runner.items)
                            send(fd, id=name, status="passed" if gathered and name not in bad else "failed")
                    os._exit(0)

            self.main(self.args_for(names), self.kind(Once()))

        got, why = {}, ""
        for line in forked(work, 2.0 + 3 * self.collecting, whole + 10 * (2.0 + 3 * self.collecting)):
            message = json.loads(line)
            if "id" in message:
                got[message["id"]] = message["status"]
            else:
                why = message.get("error", "")
        return got, why


def main():
    out = os.dup(1)
    inward = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    sys.setrecursionlimit(max(1000, sys.getrecursionlimit()))
    first = First(out)
    try:
        for line in lines_from(inward):
            request = json.loads(line)
            op = request.pop("op")
            if op == "open":
                first.open(**request)
            elif op == "try":
                first.attempt(**request)
            elif op == "call":
                if first.call(**request) is None:
                    send(out, op="done", lost=True)
            elif first.ask(op=op, **request) is None:
                send(out, op="done", lost=True)
    finally:
        try:
            os.kill(first.pid, signal.SIGKILL)
            os.waitpid(first.pid, 0)
        except (AttributeError, OSError):
            pass
        shutil.rmtree(getattr(first, "work", ""), ignore_errors=True)


main()
