"""The hook of the wheel's build: a wheel without the pages would serve none, and say nothing of it before that."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Pages(BuildHookInterface[Any]):
    """Rejects a wheel of a checkout in which the pages are not built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        page = Path(self.root, "web/dist/index.html")
        if version == "standard" and not page.is_file():
            raise FileNotFoundError("The pages are not built: run `make web` before the wheel is built.")
