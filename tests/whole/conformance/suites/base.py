"""One suite per seam: the promises of every implementation, as functions, and what they share."""

import inspect
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from cloister.core.errors import CloisterError


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"found {found!r}, wanted {wanted!r}")


def hold(truth: object, promise: str) -> None:
    if not truth:
        raise AssertionError(f"it does not hold that {promise}")


@contextmanager
def refused(*codes: str) -> Generator[None]:
    """The block must raise one of our errors with one of these codes."""
    try:
        yield
    except CloisterError as error:
        if error.code not in codes:
            raise AssertionError(f"refused with {error.code!r}, wanted {codes!r}") from error
        return
    raise AssertionError(f"nothing was raised, wanted {codes!r}")


def promises(module: str, *takes: object) -> tuple[Any, ...]:
    """The promises of a module, in order: its functions that take exactly these types and return nothing."""
    found: list[Any] = []
    for each in vars(sys.modules[module]).values():
        if inspect.isfunction(each) and each.__module__ == module and not each.__name__.startswith("_"):
            about = inspect.signature(each)
            annotations = tuple(parameter.annotation for parameter in about.parameters.values())
            if annotations == takes and about.return_annotation is None:
                found.append(each)
    return tuple(found)
