"""Who pays for what programs inside ask of a model: the run until its attempts begin, from then on each attempt."""

from collections.abc import Generator
from contextlib import contextmanager

from cloister.core.ids import SandboxId
from cloister.model.api import Model


class Inside:
    """Each sandbox of a run that has a model, and on whose account. One that nobody answers for has none."""

    def __init__(self) -> None:
        self._payers: dict[SandboxId, tuple[int | None, Model]] = {}

    def model(self, sandbox: SandboxId) -> Model | None:
        """What programs in `sandbox` speak to."""
        payer = self._payers.get(sandbox)
        return None if payer is None else payer[1]

    @contextmanager
    def paid(self, sandbox: SandboxId, attempt: int | None, model: Model) -> Generator[None]:
        """Within the block `attempt` pays for `sandbox` through `model`; None is the run itself."""
        self._payers[sandbox] = (attempt, model)
        try:
            yield
        finally:
            self._payers.pop(sandbox, None)

    def shut(self, attempt: int | None) -> None:
        """Nobody spends on this account from inside any more: what is left of it is about to be given to others."""
        self._payers = {name: payer for name, payer in self._payers.items() if payer[0] != attempt}
