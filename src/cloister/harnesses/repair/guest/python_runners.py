"""Part of the worker of a Python suite: pytest and unittest collect once, then hand the tests to `serve`."""

import os
import re
from importlib.util import find_spec

MESSAGE = 4000


class Pytest:
    """A plugin that takes the place of pytest's loop over the tests."""

    def __init__(self, serve):
        self.serve = serve
        self.errors = []
        self.parts = []
        self.caught = None

    def pytest_collectreport(self, report):
        if report.failed:
            self.errors.append(report)

    def pytest_runtestloop(self, session):
        self.items = {item.nodeid: item for item in session.items}
        self.serve(self)
        return True

    def pytest_runtest_logreport(self, report):
        self.parts.append(report)

    def pytest_exception_interact(self, node, call, report):
        if self.caught is None and call.excinfo is not None:
            self.caught = call.excinfo.value

    def broken(self):
        found = []
        for report in self.errors:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = str(getattr(crash, "message", None) or report.longrepr)
            found.append(
                {"id": report.nodeid, "message": text[-MESSAGE:], "frames": frames_in(str(report.longrepr))}
            )
        return found

    def hurry(self, quiet=True):
        """Do not write reports of failures; with `quiet`, do not explain assertions either."""
        from _pytest import nodes, python
        from _pytest.assertion import util

        if quiet:
            util.assertrepr_compare = lambda *given, **named: None
        for kind in (nodes.Node, nodes.Item, python.Function):
            kind.repr_failure = lambda *given, **named: "failed"

    def run(self, ids):
        """Run tests in the order given; yield (id, status, error)."""
        items = [self.items[name] for name in ids if name in self.items]
        for index, item in enumerate(items):
            self.parts, self.caught = [], None
            after = items[index + 1] if index + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            yield item.nodeid, status_of(self.parts), self.caught


def status_of(reports):
    if any(report.outcome == "failed" for report in reports):
        return "failed"
    passed = any(report.when == "call" and report.outcome == "passed" for report in reports)
    return "passed" if passed else "skipped"


def pytest_args(args):
    """Add what makes a run in one process quiet and repeatable, if the plugins are there."""
    more = ["-p", "no:cacheprovider", "--tb=native"]
    try:
        from importlib import metadata

        known = list(metadata.distributions())
        metadata.distributions = lambda **given: iter(known)  # scanned once, not for each child
    except Exception:
        pass
    if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD") or "--disable-plugin-autoload" in args:
        return [*args, *more]
    more += ["-n0"] if find_spec("xdist") else []
    more += ["--no-cov"] if find_spec("pytest_cov") else []
    more += ["-p", "no:randomly"] if find_spec("pytest_randomly") else []
    return [*args, *more]


def pytest_main(args, plugin):
    import pytest

    for stop in ("-x", "--exitfirst", "--lf", "--ff", "--last-failed", "--failed-first"):
        args = [arg for arg in args if arg != stop]
    return pytest.main([*args, "--continue-on-collection-errors"], plugins=[plugin])


class Unittest:
    """A test runner that takes the place of unittest's."""

    def __init__(self, serve):
        self.serve = serve
        self.items = {}
        self.failed = []

    def run(self, suite):
        if not self.items:
            self.collect(suite)
            self.serve(self)
            import unittest

            return unittest.TestResult()
        return self.each(suite)

    def collect(self, suite):
        pending = [suite]
        while pending:
            one = pending.pop()
            try:
                pending.extend(reversed(list(one)))
            except TypeError:
                if type(one).__name__ == "_FailedTest":
                    self.failed.append(one)
                else:
                    self.items[one.id()] = one
        self.items = self.items or {"": None}

    def broken(self):
        return [
            {
                "id": one.id(),
                "message": str(getattr(one, "_exception", ""))[-MESSAGE:],
                "frames": frames_in(str(getattr(one, "_exception", ""))),
            }
            for one in self.failed
        ]

    def hurry(self, quiet=True):
        pass

    def each(self, ids):
        import unittest

        outer = self

        class Result(unittest.TestResult):
            def note(self, error):
                outer.caught = outer.caught or error[1]

            def addError(self, test, err):
                super().addError(test, err)
                self.note(err)

            def addFailure(self, test, err):
                super().addFailure(test, err)
                self.note(err)

            def addSubTest(self, test, subtest, err):
                super().addSubTest(test, subtest, err)
                if err is not None:
                    self.note(err)

        for name in ids:
            if self.items.get(name) is None:
                continue
            self.caught = None
            result = Result()
            unittest.TestSuite([self.items[name]]).run(result)
            good = result.wasSuccessful() and not result.unexpectedSuccesses
            yield name, ("failed" if not good else "skipped" if result.skipped else "passed"), self.caught


def unittest_main(args, runner):
    import unittest

    unittest.main(module=None, argv=["unittest", *args], testRunner=runner, exit=False)


RUNNERS = {"pytest": (Pytest, pytest_main), "unittest": (Unittest, unittest_main)}


def frames_in(text):
    """Places named in a traceback as text."""
    found = []
    for path, line in re.findall(
        r'^[ E]{0,12}(?:File "|)([^\s":]{1,300}\.py)(?:", line |:)(\d{1,7})', text, re.MULTILINE
    ):
        real = os.path.realpath(path)
        if real.startswith(os.getcwd() + os.sep):
            found.append([os.path.relpath(real), int(line)])
    return found[-20:]


def frames_of(error):
    found, trace = [], getattr(error, "__traceback__", None)
    here = os.getcwd() + os.sep
    while trace is not None and len(found) < 2000:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(here):
            found.append([name[len(here) :], trace.tb_lineno])
        trace = trace.tb_next
    return found[:5] + found[-15:] if len(found) > 20 else found
