"""The application: settings, wiring and the verbs."""

import os
from collections.abc import Mapping
from pathlib import Path


def default_data_dir(env: Mapping[str, str]) -> Path:
    """The data directory where no option names one."""
    if chosen := env.get("CLOISTER_DATA_DIR"):
        return Path(chosen).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/cloister")
    base = env.get("XDG_DATA_HOME") or str(Path(env.get("HOME", "/")) / ".local" / "share")
    return Path(base) / "cloister"
