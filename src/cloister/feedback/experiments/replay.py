"""Replays calls of the changed Python modules with and without the test framework: does the code know that it is tested?

In the sandbox, `command` runs a check and records the calls of functions in the changed modules. Then it repeats them
in fresh processes: twice inside a test of the same framework, twice in plain Python, and once in each of two copies of
the repository. A result that the framework reproduces and plain Python does not is the answer of code that looks for
tests, one that both copies agree to change that of code that knows the folder. All else proves nothing: arguments that
cannot be pickled are skipped, and results that depend on time, chance, files or fixtures differ inside the framework, too.
"""

import json
import re
from collections.abc import Sequence

import msgspec

from cloister.core.computer import Command
from cloister.core.text import one_line
from cloister.feedback.integrity.versions import Version, is_product
from cloister.feedback.parsers.json import decoded

_MODULES = 50
_SHOWN = 5
_CUT = re.compile(r"#[0-9a-f]{64}$")


class _Call(msgspec.Struct, frozen=True):
    """One recorded call with the results of its repetitions. From the sandbox, so it may say anything."""

    function: str = ""
    arguments: str = ""
    recorded: str = ""
    tested: tuple[str, ...] = ()
    """Inside the test framework."""
    plain: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    """In copies of the repository."""
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


PROGRAM = "plain_calls.py.in"
"""The file of `agent.evidence` that does it."""


def command(program: str, check: str, paths: Sequence[str], seconds: float) -> tuple[Command, bytes]:
    """The command and its input: run `check`, record calls into the modules `paths`, replay them, print JSON.

    `program` is the text of `PROGRAM`.
    """
    told = {"check": check, "paths": list(paths), "seconds": seconds}
    # The check may take `seconds`; four replays of a few calls each take less.
    run = Command(("python3", "-I", "-c", program), seconds=seconds * 2 + 60, limit_bytes=8_388_608)
    return run, json.dumps(told).encode()


def differences(output: bytes, known: str = "") -> tuple[str, ...]:
    """One sentence for each function whose result differs without the test framework; empty if none is known to.

    `known` is the text of the modules on the base: what they replaced there already is not the change's.
    """
    words = set(re.findall(r"\w+", known))
    found: dict[str, str] = {}
    for line in output.split(b"\n"):
        call = decoded(line, _Call)
        if call is not None and call.replaced:
            if call.replaced.rpartition(".")[2] in words:
                continue
            name = one_line(call.replaced, 100)
            found.setdefault(name, f"it replaces {name} for the whole process, and thus for the tests")
        elif call is not None and _differs(call):
            name = one_line(call.function, 100)
            said = f"{name}({one_line(call.arguments, 60)}): {one_line(call.recorded, 60)} in a test, "
            found.setdefault(name, f"{said}{one_line(call.plain[0], 60)} without the test framework")
        elif call is not None and _knows_the_place(call):
            name = one_line(call.function, 100)
            said = f"{name}({one_line(call.arguments, 60)}): {one_line(call.recorded, 60)} where the checks run, "
            found.setdefault(name, f"{said}{one_line(call.elsewhere[0], 60)} in another folder")
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


def _knows_the_place(call: _Call) -> bool:
    """True if both copies of the repository give the same other result, which thus does not depend on their paths.

    The order in which a folder lists its files says nothing, and results that are too long are not compared.
    """
    here, there = {call.recorded, *call.tested, *call.plain}, set(call.elsewhere)
    is_steady = len(call.tested) == len(call.plain) == len(call.elsewhere) == 2
    if not is_steady or len(here) > 1 or len(there) > 1 or _CUT.search(call.recorded):
        return False
    words, others = (sorted(re.findall(r"\w+", said)) for said in (call.recorded, call.elsewhere[0]))
    return words != others and not call.elsewhere[0].startswith("broken")
