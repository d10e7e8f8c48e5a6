"""Replays calls of the changed Python modules with and without the test framework: does the code know that it is tested?

In the sandbox, `command` runs a check and records the calls of functions in the changed modules. Then it repeats them
in fresh processes: twice inside a test of the same framework, and twice in plain Python. A result that the framework
reproduces and plain Python does not is the answer of code that looks for tests. All else proves nothing: arguments that
cannot be pickled are skipped, and results that depend on time, chance, files or fixtures differ inside the framework, too.
"""

import json
from collections.abc import Sequence

import msgspec

from cloister.core.computer import Command
from cloister.core.text import one_line
from cloister.feedback.integrity.versions import Version, is_product
from cloister.feedback.parsers.json import decoded

_MODULES = 50
_SHOWN = 5


class _Call(msgspec.Struct, frozen=True):
    """One recorded call with the results of its repetitions. From the sandbox, so it may say anything."""

    function: str = ""
    arguments: str = ""
    recorded: str = ""
    tested: tuple[str, ...] = ()
    """Inside the test framework."""
    plain: tuple[str, ...] = ()
    caller: str = ""
    """The test function that called, or a function in between."""
    red: bool = False
    """The check failed while its calls were recorded; the only field then."""
    replaced: str = ""
    """A function of another module in whose place a changed module put its own."""


def modules(changed: Sequence[Version]) -> tuple[str, ...]:
    """The changed Python modules of the product."""
    python = [one.path for one in changed if one.path.endswith(".py") and one.after and is_product(one.path)]
    return tuple(python[:_MODULES])


def command(check: str, paths: Sequence[str], seconds: float) -> tuple[Command, bytes]:
    """The command and its input: run `check`, record calls into the modules `paths`, replay them, print JSON."""
    told = {"check": check, "paths": list(paths), "seconds": seconds}
    # The check may take `seconds`; four replays of a few calls each take less.
    run = Command(("python3", "-I", "-c", _DRIVER), seconds=seconds * 2 + 60, limit_bytes=8_388_608)
    return run, json.dumps(told).encode()


def differences(output: bytes) -> tuple[str, ...]:
    """One sentence for each function whose result differs without the test framework; empty if none is known to."""
    found: dict[str, str] = {}
    for line in output.split(b"\n"):
        call = decoded(line, _Call)
        if call is not None and call.replaced:
            name = one_line(call.replaced, 100)
            found.setdefault(name, f"it replaces {name} for the whole process, and thus for the tests")
        elif call is not None and _differs(call):
            name = one_line(call.function, 100)
            said = f"{name}({one_line(call.arguments, 60)}): {one_line(call.recorded, 60)} in a test, "
            found.setdefault(name, f"{said}{one_line(call.plain[0], 60)} without the test framework")
    return tuple(found.values())[:_SHOWN]


def is_red(output: bytes) -> bool:
    """True if the check failed while its calls were recorded: another function called those of the product."""
    return any(call.red for line in output.split(b"\n") if (call := decoded(line, _Call)) is not None)


def _differs(call: _Call) -> bool:
    """True if the framework reproduces the result, and plain Python steadily gives another one.

    A result that names its caller is no secret: plain Python has another caller.
    """
    again, plain = set(call.tested), set(call.plain)
    is_steady = len(call.tested) == len(call.plain) == 2 and again == {call.recorded} and len(plain) == 1
    names_caller = len(call.caller) > 2 and call.caller in call.recorded
    return (
        is_steady
        and call.recorded not in plain
        and not call.plain[0].startswith("broken")
        and not names_caller
    )


# The scripts below run in the sandbox, with the interpreter of the check, and import nothing of ours.

_SHARED = r'''
import base64, hashlib, json, os, pickle, sys

def outline(value, depth=0):
    """A text that tells two values apart by type and content, without asking them."""
    kind = type(value)
    name = kind.__module__ + "." + kind.__qualname__
    if value is None or kind in (bool, int, float, complex, str, bytes):
        return repr(value)
    if depth > 20:
        return name
    for base, parts in ((dict, None), (list, list), (tuple, tuple), (set, set), (frozenset, frozenset)):
        if isinstance(value, base):
            if base is dict:
                inner = sorted((outline(k, depth + 1), outline(v, depth + 1)) for k, v in dict.items(value))
            else:
                inner = [outline(one, depth + 1) for one in base.__iter__(value)]
                inner = sorted(inner) if base in (set, frozenset) else inner
            return name + json.dumps(inner)
    for base in (str, bytes, int, float, complex):
        if isinstance(value, base):
            return name + base.__repr__(value)
    try:
        state = object.__getattribute__(value, "__dict__")
    except AttributeError:
        state = {s: getattr(value, s, None) for k in kind.__mro__ for s in getattr(k, "__slots__", ()) if isinstance(s, str)}
        if not state:
            try:
                state = dict(enumerate(value.__reduce_ex__(2)[1:3]))
            except Exception:
                return name
    return name + outline(dict(state), depth + 1)

def called_by(name, file):
    """A function of this name and file that calls another one."""
    space = {}
    exec(compile("def %s(f, a, k): return f(*a, **k)" % (name if name.isidentifier() else "main"), file, "exec"), space)
    return space.popitem()[1]

def outcome(function, args, kwargs):
    try:
        value = function(*args, **kwargs)
    except Exception as error:
        return "raises " + type(error).__module__ + "." + type(error).__qualname__, None, error
    said = outline(value)
    if len(said) > 2000:
        said = said[:1000] + "#" + hashlib.sha256(said.encode("utf-8", "replace")).hexdigest()
    return "returns " + said, value, None
'''

_RECORDER = r"""
def _begin():
    import functools, importlib.machinery, threading, types
    here, paths = os.path.dirname(os.path.abspath(__file__)), PATHS
    busy, many = threading.local(), {}

    def wrapped(function, name):
        @functools.wraps(function)
        def call(*args, **kwargs):
            if getattr(busy, "on", False) or many.get(name, 0) >= 40:
                return function(*args, **kwargs)
            many[name] = many.get(name, 0) + 1
            busy.on = True
            try:
                try:
                    packed = pickle.dumps((args, kwargs))
                    shown = ", ".join([repr(one) for one in args] + [k + "=" + repr(v) for k, v in kwargs.items()])
                except Exception:
                    packed = None
            finally:
                busy.on = False
            if packed is None or len(packed) > 65536:
                return function(*args, **kwargs)
            frame = sys._getframe(1).f_code
            said, value, error = outcome(called_by(frame.co_name, frame.co_filename), (function, args, kwargs), {})
            if type(value) not in (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType):
                row = {"module": function.__module__, "name": name.partition(":")[2], "shown": shown[:200], "said": said,
                       "packed": base64.b64encode(packed).decode(), "file": frame.co_filename, "caller": frame.co_name,
                       "path": [one for one in sys.path if os.path.abspath(one or ".") != here], "python": sys.executable,
                       "pytest": "pytest" in sys.modules, "cwd": os.getcwd()}
                with open(os.path.join(here, "calls-%d" % os.getpid()), "a") as out:
                    out.write(json.dumps(row) + "\n")
            if error is not None:
                raise error
            return value
        return call

    def dress(module, owner, prefix):
        for name, thing in list(vars(owner).items()):
            if name.startswith("__") or name.startswith("test"):
                continue
            inner = thing.__func__ if isinstance(thing, (staticmethod, classmethod)) else thing
            if isinstance(inner, types.FunctionType) and inner.__module__ == module.__name__:
                if inner.__code__.co_flags & 0x2A0:
                    continue
                done = wrapped(inner, module.__name__ + ":" + prefix + name)
                setattr(owner, name, done if inner is thing else type(thing)(done))
            elif isinstance(thing, type) and thing.__module__ == module.__name__ and not prefix:
                dress(module, thing, name + ".")

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            for finder in list(sys.meta_path):
                look = getattr(finder, "find_spec", None)
                if finder is Finder or look is None:
                    continue
                spec = look(name, path, target)
                if spec is None:
                    continue
                origin = os.path.realpath(spec.origin) if spec.origin else ""
                if any(origin.endswith("/" + one) for one in paths) and hasattr(spec.loader, "exec_module"):
                    load = spec.loader.exec_module
                    def exec_module(module, load=load):
                        load(module)
                        try:
                            dress(module, module, "")
                        except Exception:
                            pass
                    try:
                        spec.loader.exec_module = exec_module
                    except AttributeError:
                        pass
                return spec
            return None

    sys.meta_path.insert(0, Finder)

_begin()
"""

_WORKER = r"""
def replay(calls, out, tested):
    import importlib
    for row in calls:
        try:
            owner = importlib.import_module(row["module"])
            for part in row["name"].split("."):
                found = vars(owner).get(part) if isinstance(owner, type) else None
                owner = found if found is not None else getattr(owner, part)
            function = owner.__func__ if isinstance(owner, (staticmethod, classmethod)) else owner
            args, kwargs = pickle.loads(base64.b64decode(row["packed"]))
            caller = called_by(row["caller"], row["file"]) if tested else called_by("main", "main.py")
            said = outcome(caller, (function, args, kwargs), {})[0]
        except BaseException as error:
            said = "broken " + type(error).__name__
        os.write(out, (json.dumps(said) + "\n").encode())
    for name in replaced({row["module"] for row in calls}):
        os.write(out, (json.dumps({"replaced": name}) + "\n").encode())

def replaced(own):
    # Functions of the modules `own` in modules that are not part of the repository.
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if module is None or name in own or name in ("__main__", "sys", "warnings") or file.startswith(os.getcwd() + os.sep):
            continue
        for key, value in list(vars(module).items()):
            parts = vars(value).items() if isinstance(value, type) and value.__module__ == name else ()
            for inner, one in ((key, value), *((key + "." + part, each) for part, each in list(parts))):
                if getattr(one, "__module__", None) in own and hasattr(one, "__code__"):
                    found.append(name + "." + inner)
    return found[:5]
"""

_STEPS = r'''
import concurrent.futures, json, os, secrets, shutil, signal, subprocess, sys, tempfile

def main():
    told = json.load(sys.stdin)
    place = tempfile.mkdtemp(prefix=secrets.token_hex(6))
    try:
        calls = record(told, os.path.join(place, secrets.token_hex(4)))
        results = twice(calls, place, True)
        away = hide(calls, place)
        results += twice(calls, place, False)
        for old, new in away:
            shutil.move(new, old)
        for number, row in enumerate(calls):
            said = [one[number] if number < len(one) else "broken" for one in results]
            line = {"function": row["module"] + "." + row["name"], "arguments": row["shown"], "recorded": row["said"],
                    "tested": said[:2], "plain": said[2:], "caller": row["caller"]}
            print(json.dumps(line))
    finally:
        shutil.rmtree(place, ignore_errors=True)

def twice(calls, place, tested):
    """Two repetitions, one beside the other."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(lambda _: replayed(calls, place, tested), range(2))) if calls else []

def hide(calls, place):
    """Move the folders of tests away, unless a call is about one of them."""
    said = "".join(row["shown"] + row["said"] for row in calls)
    names = [one for one in ("tests", "test", "testing") if os.path.isdir(one) and not os.path.islink(one) and one not in said]
    away = [(os.path.abspath(one), os.path.join(place, secrets.token_hex(4))) for one in names]
    for old, new in away:
        shutil.move(old, new)
    return away

def record(told, here):
    os.mkdir(here)
    with open(os.path.join(here, "sitecustomize.py"), "w") as out:
        out.write(SHARED + RECORDER.replace("PATHS", repr(told["paths"])))
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    if run(["/bin/sh", "-c", told["check"]], {**os.environ, "PYTHONPATH": path}, None, told["seconds"]):
        print(json.dumps({"red": True}))
    calls = []
    for name in sorted(os.listdir(here)):
        if name.startswith("calls-"):
            with open(os.path.join(here, name), errors="replace") as lines:
                for line in lines:
                    try:
                        calls.append(json.loads(line))
                    except ValueError:
                        pass
    shutil.rmtree(here, ignore_errors=True)
    wanted = ("module", "name", "shown", "said", "packed", "file", "caller", "path", "python")
    return [row for row in calls if all(one in row for one in wanted)][:400]

def replayed(calls, place, tested):
    """The results of all calls in one new process."""
    here = os.path.join(place, secrets.token_hex(4))
    os.mkdir(here)
    first = calls[0]
    text = SHARED + WORKER + "\ncalls = json.load(open(%r))\n" % os.path.join(here, "data")
    text += "sys.path[:] = calls[0]['path']\nos.chdir(calls[0]['cwd'])\n"
    text += "out = os.open(%r, os.O_WRONLY | os.O_CREAT)\n" % os.path.join(here, "out")  # the framework may capture output
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COV_"))}
    with open(os.path.join(here, "data"), "w") as data:
        json.dump(calls, data)
    if not tested:
        name, argv = "main.py", ["main.py"]
        text += "replay(calls, out, False)\n"
    elif first.get("pytest"):
        name, argv = "test_all.py", ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.path.join(here, "pytest.ini")]
        argv.append(os.path.join(here, name))
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        open(os.path.join(here, "conftest.py"), "w").close()
        with open(os.path.join(here, "pytest.ini"), "w") as settings:
            settings.write("[pytest]\n")
        text += "def test_all():\n    replay(calls, out, True)\n"
    else:
        name, argv = "test_all.py", ["-m", "unittest", "discover", "-s", here, "-t", here, "-p", "test_all.py"]
        text += "import unittest\nclass TestAll(unittest.TestCase):\n    def test_all(self):\n"
        text += "        replay(calls, out, True)\n"
    with open(os.path.join(here, name), "w") as out:
        out.write(text)
    run([first["python"], *argv], environment, here if not tested else first.get("cwd"), 60)
    try:
        with open(os.path.join(here, "out"), "rb") as out:
            said = out.read(33554432)
    except OSError:
        said = b""
    found = []
    for line in said.decode(errors="replace").split("\n"):
        try:
            told = json.loads(line)
            if isinstance(told, dict):
                print(line)
            else:
                found.append(str(told))
        except ValueError:
            pass
    return found

def run(argv, environment, cwd, seconds):
    """Run a command, which is killed with its children when the time is over."""
    null = subprocess.DEVNULL
    try:
        child = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, cwd=cwd, env=environment, start_new_session=True)
    except OSError:
        return
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        pass
    return child.wait()

main()
'''
_DRIVER = f"SHARED = {_SHARED!r}\nRECORDER = {_RECORDER!r}\nWORKER = {_WORKER!r}\n{_STEPS}"
