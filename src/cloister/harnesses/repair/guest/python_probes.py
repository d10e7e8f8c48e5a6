"""Part of the worker of a Python suite: what tests run, and what functions return near the inputs of the tests."""

import dis
import hashlib
import os
import signal
import types

LINKED = {".venv", "venv", "env", "node_modules"}
"""Folders of a copy that are links to those of the repository."""


class Late(BaseException):
    """The time of one test is over."""


class Tracer:
    """Collects the lines that run in files of the repository.

    With `only` (path to lines), it traces just functions with one of these lines, and their first calls in each test.
    """

    def __init__(self, only=None):
        self.here = os.getcwd() + os.sep
        self.only, self.seen, self.codes, self.counts = only, {}, {}, {}

    def __call__(self, frame, event, argument):
        code = frame.f_code
        known = self.codes.get(id(code))
        if known is None:
            known = self.codes[id(code)] = (
                self.tracing(code),
                code,
            )  # the code is kept, so its id stays its own
        if self.only is not None and known[0]:
            count = self.counts[id(code)] = self.counts.get(id(code), 0) + 1
            if count > CALLS:
                return None
        return known[0]

    def tracing(self, code):
        name = code.co_filename
        path = name[len(self.here) :]
        if not name.startswith(self.here) or set(path.split(os.sep)) & LINKED:
            return None
        if self.only is not None and not self.only.get(path, NONE).intersection(lines_of(code)):
            return None
        add = self.seen.setdefault(path, set()).add

        def local(frame, event, argument):
            if event == "line":
                add(frame.f_lineno)
            return local

        return local

    def taken(self):
        found = {path: sorted(lines) for path, lines in self.seen.items() if lines}
        for lines in self.seen.values():
            lines.clear()
        self.counts.clear()
        return found


NONE = frozenset()
CALLS = 30
"""Calls of one function in one passing test that are traced."""


def lines_of(code):
    return [line for _, line in dis.findlinestarts(code)]


class Recorder:
    """Records the arguments and the result of calls of functions of one file, then calls them with near arguments."""

    def __init__(self, full, limit):
        self.full, self.limit, self.calls, self.results, self.open = full, limit, {}, [], {}

    def __call__(self, frame, event, argument):
        code = frame.f_code
        if code.co_filename != self.full or len(self.results) >= self.limit or code.co_flags & 0x2A0:
            return
        if event == "call":
            names = code.co_varnames[: code.co_argcount]
            try:
                given = [frame.f_locals[name] for name in names]
                text = repr(given)
            except Exception:
                return
            if len(text) < 2000 and " at 0x" not in text:
                self.open[id(frame)] = (code.co_name, text)
                self.calls.setdefault((code.co_name, code.co_firstlineno), (frame.f_globals, []))[1].append(
                    text
                )
        elif event == "return" and id(frame) in self.open:
            name, text = self.open.pop(id(frame))
            self.results.append((name + text, shown(argument)))

    def digests(self):
        """Yield (what was called, a digest of what came) for near arguments of plain functions of the module."""
        count = 0
        for (name, _), (space, texts) in sorted(self.calls.items(), key=lambda one: one[0]):
            function = space.get(name)
            if not isinstance(function, types.FunctionType):
                continue
            for text in dict.fromkeys(texts[:20]):
                for near in nearby(text):
                    count += 1
                    if count > self.limit:
                        return
                    yield name + repr(near), outcome(function, near)


def nearby(text):
    """Argument lists near one that was seen: plain values only."""
    import ast

    try:
        given = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return
    yield given
    for index, value in enumerate(given):
        for other in neighbours(value):
            yield [*given[:index], other, *given[index + 1 :]]


def neighbours(value):
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, 0] if abs(value) < 10**6 else [value - 1]
    if isinstance(value, float):
        return [value + 1.0, -value]
    if isinstance(value, (str, list, tuple)) and len(value) < 200:
        return [value[1:], value[:-1], value + value[:1], value[::-1]]
    if isinstance(value, dict) and value:
        return [dict(list(value.items())[1:])]
    return []


def outcome(function, near):
    signal.signal(signal.SIGALRM, lambda number, frame: (_ for _ in ()).throw(Late()))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        found = function(*near)
        if isinstance(found, types.GeneratorType):
            found = [one for one, _ in zip(found, range(1000))]
        return shown(found)
    except Late:
        return "late"
    except Exception as error:
        return "raises " + type(error).__name__
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def shown(value):
    try:
        text = repr(value)
    except Exception as error:
        text = "unprintable " + type(error).__name__
    if " at 0x" in text:
        text = type(value).__name__
    return hashlib.sha256(text[:20000].encode(errors="replace")).hexdigest()[:16]
