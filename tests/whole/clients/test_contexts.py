"""Interpreters inside a sandbox whose variables live, seen through the Python client."""

import base64
import threading
from collections.abc import Iterator

import anyio
import pytest
from tests.whole.e2e.conftest import Cloister

from cloister import AsyncClient, Client, CloisterError, Sandbox


@pytest.fixture(scope="module")
def sandbox(command: Cloister) -> Iterator[Sandbox]:
    with Client(data_dir=command.data_dir).create(ttl_seconds=600) as made:
        yield made


def test_variables_live_across_calls_and_the_last_expression_is_the_result(sandbox: Sandbox) -> None:
    first = sandbox.run_code("import math\nx = 41\nprint('set')")
    assert (first.stdout, first.results, first.error) == ("set\n", (), None)
    then = sandbox.run_code("x += 1\nx")
    assert [(one.data, one.main) for one in then.results] == [({"text/plain": "42"}, True)]
    assert then.count == first.count + 1
    assert sandbox.run_code("math.floor(x / 5);").results == (), "a semicolon shows nothing"
    assert sandbox.run_code("import asyncio\nawait asyncio.sleep(0, 'late')").results[0].data == {
        "text/plain": "'late'"
    }
    defined = sandbox.run_code(
        "def f():\n    return x\nclass A:\n    def _repr_html_(self):\n        return '<b>a</b>'"
    )
    assert defined.error is None
    assert sandbox.run_code("f()").results[0].data == {"text/plain": "42"}


def test_output_of_cells_and_of_their_programs_arrives_by_stream(sandbox: Sandbox) -> None:
    ran = sandbox.run_code(
        "import subprocess, sys, os\nprint('é')\nprint('bad', file=sys.stderr)\n"
        "subprocess.run(['sh', '-c', 'echo child; echo worse >&2'])\nos.write(1, b'raw\\n');\n!echo shell $((1+1))\n"
    )
    assert ran.error is None
    assert (ran.stdout, ran.stderr) == ("é\nchild\nraw\nshell 2\n", "bad\nworse\n")
    assert sandbox.run_code("input()").error is not None, "there is nothing to read"
    big = sandbox.run_code("print('x' * 3_000_000)")
    assert (len(big.stdout), big.truncated) == (3_000_001, False)
    endless = sandbox.run_code("for _ in range(50): print('x' * 1_000_000)")
    assert endless.truncated and len(endless.stdout) <= 33_554_432


def test_results_have_html_and_pictures(sandbox: Sandbox) -> None:
    ran = sandbox.run_code(
        "class P:\n    def _repr_png_(self):\n        return b'\\x89PNG'\n    def _repr_html_(self):\n        return '<i>p</i>'\n"
        "display(P())\nP()"
    )
    shown, main = ran.results
    assert (shown.main, main.main) == (False, True)
    assert base64.b64decode(main.data["image/png"]) == b"\x89PNG"
    assert main.data["text/html"] == "<i>p</i>" and main.data["text/plain"].startswith("<__main__.P")


def test_an_exception_is_a_result_with_the_traceback_of_the_code_alone(sandbox: Sandbox) -> None:
    ran = sandbox.run_code("kept = 7\ndef g():\n    return 1 / 0\ng()")
    assert ran.error is not None
    assert (ran.error.name, ran.error.value) == ("ZeroDivisionError", "division by zero")
    assert "return 1 / 0" in ran.error.traceback and "run_cell" not in ran.error.traceback
    broken = sandbox.run_code("this is (not python").error
    assert broken is not None and broken.name == "SyntaxError"
    left = sandbox.run_code("raise SystemExit(3)").error
    assert left is not None and left.name == "SystemExit"
    assert sandbox.run_code("kept").results[0].data == {"text/plain": "7"}


def test_code_is_interrupted_at_its_limit_and_the_variables_stay(sandbox: Sandbox) -> None:
    sandbox.run_code("kept = 'still'")
    late = sandbox.run_code("import time\ntime.sleep(1000)", seconds=0.5)
    assert late.timed_out and late.error is not None and late.error.name == "KeyboardInterrupt"
    assert sandbox.run_code("kept").results[0].data == {"text/plain": "'still'"}
    stubborn = "import time\nwhile True:\n    try:\n        time.sleep(1)\n    except KeyboardInterrupt:\n        pass"
    assert sandbox.run_code(stubborn, seconds=0.2).timed_out
    again = sandbox.run_code("'kept' in globals()")
    assert again.results[0].data == {"text/plain": "False"}, "a new one was made"


@pytest.mark.anyio
async def test_code_cannot_end_its_context_by_what_it_shows_or_raises(command: Cloister) -> None:
    from cloister.app.verbs.records import RunCode

    client = AsyncClient(data_dir=command.data_dir)
    async with await client.create() as sandbox:
        await sandbox.run_code("kept = 7")
        named = await client.verbs.sandboxes.run_code(sandbox.id, "default", RunCode("1", env={"A=B": "x"}))
        assert named.error is not None and named.error.name == "ValueError"
        for code in (
            "raise ValueError('\\udcff')",
            "class E(Exception):\n    def __str__(self):\n        raise E\nraise E",
            "class M:\n    def _repr_mimebundle_(self):\n        return {str(i): 'x' for i in range(99)}\nM()",
        ):
            await sandbox.run_code(code)
            assert (await sandbox.run_code("kept")).results[0].data == {"text/plain": "7"}, code


@pytest.mark.anyio
async def test_contexts_are_apart_listed_restarted_and_removed(command: Cloister) -> None:
    client = AsyncClient(data_dir=command.data_dir)
    verbs = client.verbs.sandboxes
    from cloister.app.verbs.records import NewContext, RunCode

    async with await client.create() as sandbox:
        one = await verbs.new_context(sandbox.id, NewContext(cwd="/tmp", env={"COLOUR": "red"}))
        two = await verbs.new_context(sandbox.id, NewContext())
        await sandbox.run_code("x = 1", one.id)
        apart = await sandbox.run_code("x", two.id)
        assert apart.error is not None and apart.error.name == "NameError"
        where = await sandbox.run_code("import os; (os.getcwd(), os.environ['COLOUR'])", one.id)
        assert where.results[0].data == {"text/plain": "('/tmp', 'red')"}
        assert [context.id for context in await verbs.contexts(sandbox.id)] == [one.id, two.id]
        await verbs.restart_context(sandbox.id, one.id)
        gone = await sandbox.run_code("x", one.id)
        assert gone.error is not None and gone.error.name == "NameError"
        await verbs.remove_context(sandbox.id, one.id)
        for call in (
            lambda: sandbox.run_code("1", one.id),
            lambda: verbs.remove_context(sandbox.id, one.id),
            lambda: verbs.run_code("s-nothing", "default", RunCode("1")),
        ):
            with pytest.raises(CloisterError) as error:
                await call()
            assert error.value.code in ("no_such_context", "no_such_sandbox")
        # Both at once: each waits for its own.
        results: list[str] = []

        async def count(context: str, number: int) -> None:
            ran = await sandbox.run_code(f"import time; time.sleep(0.2); print({number})", context)
            results.append(ran.stdout)

        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(count, ("default", two.id)[number % 2], number)
        assert sorted(results) == [f"{number}\n" for number in range(6)]


def test_a_program_inside_that_breaks_the_rules_ends_its_context_only(sandbox: Sandbox) -> None:
    for lie in (
        "channel.write(b'not json\\n'); channel.flush()",
        'channel.write(b\'{"type":"result","id":%d,"data":7,"main":true}\\n\' % current[\'id\']); channel.flush()',
        "channel.write(b'x' * 17_000_000); channel.flush()",
        "import os; os._exit(3)",
    ):
        program = f"import sys\nglobals().update(sys.modules['__main__'].__dict__)\n{lie}\nimport time; time.sleep(60)"
        with pytest.raises(CloisterError) as error:
            ran = sandbox.run_code(program, seconds=20)
            raise AssertionError((lie, ran))
        assert error.value.code == "context_ended", lie
        assert sandbox.run_code("1 + 1").results[0].data == {"text/plain": "2"}


def test_a_caller_that_leaves_interrupts_its_code(command: Cloister, sandbox: Sandbox) -> None:
    sandbox.run_code("kept = 1")

    async def leave() -> None:
        other = await AsyncClient(data_dir=command.data_dir).sandbox(sandbox.id)
        with anyio.move_on_after(1):
            await other.run_code("import time; time.sleep(1000)", seconds=1000)

    thread = threading.Thread(target=anyio.run, args=(leave,))
    thread.start()
    thread.join()
    assert sandbox.run_code("kept", seconds=60).results[0].data == {"text/plain": "1"}
