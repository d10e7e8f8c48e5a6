from cloister.core.requests import Isolation
from cloister.runs.event_text import facts


def test_what_is_in_force_is_said_in_full_and_what_is_missing_too() -> None:
    gvisor = Isolation("gvisor", "runsc 1", shares_kernel=False, store="overlay", platform="systrap")
    assert facts.isolation(gvisor) == "gvisor · runsc 1 on systrap · own kernel · overlay store"
    weaker = Isolation("gvisor", "runsc 1", False, "overlay", platform="ptrace", seccomp=False)
    assert (
        facts.isolation(weaker)
        == "gvisor · runsc 1 on ptrace · own kernel · no seccomp filter · overlay store"
    )
