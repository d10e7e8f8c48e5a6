"""Runs cells of Python in one namespace, for `contexts.py`. Standard library only, for any Python from 3.8 on.

Requests are JSON lines on stdin, answers JSON lines on what was stdout. Programs that cells start write to pipes in its
place, which two threads read, so that all output of a cell counts as its own.
"""

import ast
import asyncio
import base64
import builtins
import codecs
import inspect
import json
import linecache
import os
import re
import signal
import subprocess
import sys
import threading
import traceback

channel = loop = None
running = [False]
lock = threading.Lock()
current = {"id": 0, "count": 0}
names = {"__name__": "__main__", "__builtins__": builtins}
MOST_MIMES = 32
MIMES = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)


def tell(kind, **members):
    # Not as ASCII: a lone surrogate would be an escape that no strict reader takes.
    line = json.dumps({"type": kind, "id": current["id"], **members}, ensure_ascii=False)
    line = line.encode("utf-8", "replace") + b"\n"
    with lock:
        channel.write(line)
        channel.flush()


class Drain:
    """Reports what arrives at a file descriptor as output of the current cell."""

    def __init__(self, number, stream):
        self.stream = stream
        self.read, self.write = os.pipe()
        os.dup2(self.write, number)
        self.mark = b""
        self.seen = threading.Event()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        decoder, held = codecs.getincrementaldecoder("utf-8")("replace"), b""
        while True:
            held += os.read(self.read, 65536)
            mark = self.mark
            found = held.find(mark) if mark else -1
            if found >= 0:
                text, held = decoder.decode(held[:found], True), held[found + len(mark) :]
                decoder.reset()
                if text:
                    tell("out", stream=self.stream, text=text)
                self.mark = b""
                self.seen.set()
            # A mark may have arrived in part.
            keep = len(mark) - 1 if mark else 0
            if len(held) > keep:
                text, held = decoder.decode(held[: len(held) - keep]), held[len(held) - keep :]
                if text:
                    tell("out", stream=self.stream, text=text)

    def flush(self):
        self.seen.clear()
        self.mark = b"\0" + os.urandom(16).hex().encode() + b"\0"
        data = self.mark
        while data:
            data = data[os.write(self.write, data) :]
        self.seen.wait(10)


def bundle(value):
    """The representations of a value by MIME type, as text; bytes are base64."""
    found = {}
    if hasattr(value, "_repr_mimebundle_"):
        try:
            given = value._repr_mimebundle_()
            found.update(given[0] if isinstance(given, tuple) else given)
        except Exception:
            pass
    for method, mime in MIMES:
        if mime in found or isinstance(value, type) or not hasattr(value, method):
            continue
        try:
            given = getattr(value, method)()
        except Exception:
            continue
        if isinstance(given, tuple):
            given = given[0]
        if given is not None:
            found[mime] = given
    found.setdefault("text/plain", repr(value))
    told = {}
    for mime, given in list(found.items())[-MOST_MIMES:]:
        if isinstance(given, bytes):
            given = base64.b64encode(given).decode()
        told[str(mime)] = given if isinstance(given, str) else json.dumps(given, default=str)
    return told


def display(*values):
    for value in values:
        tell("result", data=bundle(value), main=False)


def show_figures(*_, **__):
    """Each open figure of matplotlib as a picture; then it is closed."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    import io

    for number in pyplot.get_fignums():
        figure, held = pyplot.figure(number), io.BytesIO()
        figure.savefig(held, format="png", bbox_inches="tight")
        data = {"image/png": base64.b64encode(held.getvalue()).decode(), "text/plain": repr(figure)}
        tell("result", data=data, main=False)
        pyplot.close(figure)


def run_line(line):
    """A line that began with an exclamation mark."""
    done = subprocess.run(["/bin/sh", "-c", line])
    names["_exit_code"] = done.returncode


def translated(code):
    """Lines for the shell as Python."""
    lines = []
    for line in code.split("\n"):
        found = re.match(r"^(\s*)(!|%(?=pip\s))(.*)$", line)
        if found:
            line = "%s__run_line__(%r)" % (found.group(1), found.group(3))
        lines.append(line)
    return "\n".join(lines)


def parsed(code):
    try:
        return code, ast.parse(code)
    except SyntaxError:
        other = translated(code)
        return other, ast.parse(other)


def run_cell(code, name):
    code, tree = parsed(code)
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    value = None
    for part, mode in ((tree, "exec"), (last, "eval")):
        if part is None:
            continue
        compiled = compile(part, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(compiled, names)
        if inspect.iscoroutine(value) and compiled.co_flags & inspect.CO_COROUTINE:
            value = loop.run_until_complete(value)
    if last is not None and value is not None:
        names["_"] = value
        tell("result", data=bundle(value), main=True)


def failure(error, name):
    frames = traceback.extract_tb(error.__traceback__)
    begin = next((at for at, frame in enumerate(frames) if frame.filename == name), len(frames))
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames[begin:])]
    lines += traceback.format_exception_only(type(error), error)
    try:
        value = str(error)
    except Exception:
        value = "<exception str() failed>"
    tell("error", name=type(error).__name__, value=value, traceback="".join(lines))


def interrupted(*_):
    if running[0]:
        raise KeyboardInterrupt


def serve():
    global channel, loop
    requests, channel = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    drains = (Drain(1, "out"), Drain(2, "err"))
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)
    os.environ.setdefault("MPLBACKEND", "agg")
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    builtins.display = display
    builtins.__run_line__ = run_line
    sys.argv = [""]
    sys.path.insert(0, "")
    signal.signal(signal.SIGINT, interrupted)
    for line in requests:
        answer(json.loads(line))
        sys.stdout.flush()
        sys.stderr.flush()
        for drain in drains:
            drain.flush()
        tell("done", count=current["count"])


def answer(request):
    current["id"] = request["id"]
    current["count"] += 1
    name = "<cell %d>" % current["count"]
    try:
        os.environ.update(request.get("env") or {})
        running[0] = True
        run_cell(request["code"], name)
        show_figures()
        running[0] = False
    except BaseException as error:
        running[0] = False
        failure(error, name)


if __name__ == "__main__":
    serve()
