"""The harness of an attempt by its name: the loop, the search (`repair/`), and programs inside the sandbox (`acp/`)."""

from cloister.agent.harnesses.api import Harness
from cloister.agent.harnesses.native.loop import NativeHarness
from cloister.core.attempts import ACP_PREFIX, CLAUDE, CODEX, NATIVE, OPENCODE, REPAIR
from cloister.core.errors import UserError

HARNESSES = (NATIVE, REPAIR, OPENCODE, CLAUDE, CODEX)
"""Those with a name; beside them there is any `acp:COMMAND`."""


def choose_harness(name: str) -> Harness:
    """Raises `UserError` (`unknown_harness`)."""
    if name == NATIVE:
        return NativeHarness()
    if name == REPAIR:
        from cloister.harnesses.repair.harness import RepairHarness  # noqa: PLC0415  (takes long to load)

        return RepairHarness()
    if name in HARNESSES or name.startswith(ACP_PREFIX):
        from cloister.harnesses.acp.harness import AcpHarness  # noqa: PLC0415  (few runs need it)

        return AcpHarness(name)
    known = ", ".join((*sorted(HARNESSES), f"{ACP_PREFIX}COMMAND"))
    raise UserError("unknown_harness", f"There is no harness {name[:40]!r}. Known: {known}.")
