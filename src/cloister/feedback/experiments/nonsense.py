"""Runs tests with a product that answers nonsense: each must fail, unless something lies about its result.

The changed modules are loaded, so that whatever they do to their process is done, and hidden: the tests get objects
that no test can want. A test that was red on the base and passes with these does not depend on the answers, but on what
the product does to the test runner or to libraries. The lines of the tests stay as they are, so no code can tell this
run from another one by their text.
"""

from collections.abc import Sequence

KINDS = ("false", "true", "raise")
"""What the objects do. A test passes with one of these if it asserts nothing, or that something is true, or fails."""

_SCRIPT = """\
import importlib.machinery
import os
import sys
import types

_PATHS, _KIND = {paths!r}, {kind!r}
_USED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "used")


class Nothing:
    def __call__(self, *args, **kwargs):
        with open(_USED, "a") as file:
            file.write("called\\n")
        if _KIND == "raise":
            raise ArithmeticError("nonsense")
        return Nothing()

    def __getattr__(self, name):
        if name[:2] == "__":
            raise AttributeError(name)
        return Nothing()

    def __bool__(self):
        return _KIND == "true"


class _Shown(types.ModuleType):
    def __getattr__(self, name):
        if name[:2] == "__":
            raise AttributeError(name)
        return Nothing()


class _Loader:
    def __init__(self, real):
        self.real = real

    def __getattr__(self, name):
        return getattr(self.real, name)

    def create_module(self, spec):
        return _Shown(spec.name)

    def exec_module(self, module):
        hidden = types.ModuleType(module.__name__)
        for name in ("__spec__", "__loader__", "__package__", "__file__", "__path__"):
            if name in vars(module):
                setattr(hidden, name, vars(module)[name])
        try:
            exec(self.real.get_code(module.__name__), vars(hidden))
        except Exception:
            pass
        module.__hidden = hidden


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        for finder in list(sys.meta_path):
            look = getattr(finder, "find_spec", None)
            spec = look(name, path, target) if look is not None and finder is not _Finder else None
            if spec is None:
                continue
            origin = os.path.realpath(spec.origin) if spec.origin else ""
            if any(origin.endswith("/" + one) for one in _PATHS) and hasattr(spec.loader, "get_code"):
                spec.loader = _Loader(spec.loader)
            return spec
        return None


sys.meta_path.insert(0, _Finder)
"""


def nonsense(paths: Sequence[str], kind: str) -> str:
    """A `sitecustomize.py` that puts nonsense in the place of the modules in these files."""
    return _SCRIPT.format(paths=list(paths), kind=kind)
