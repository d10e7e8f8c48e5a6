"""The process that runs a local model. `_spawn.py` starts it by its path; it imports nothing of Cloister.

The first line of its input is the order, its only line of output the address. It exits when its input ends, which
happens when its parent process ends for any reason.
"""

import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    """Serve until the input ends."""
    xllamacpp: Any = importlib.import_module("xllamacpp")  # has no types
    wanted: dict[str, Any] = json.loads(sys.stdin.readline())
    params = xllamacpp.CommonParams()
    params.model.path = wanted["model"]
    params.model_alias = [wanted["name"]]
    params.port = wanted["port"]
    params.api_keys = [wanted["key"]]
    params.n_parallel = wanted["parallel"]
    params.n_ctx = wanted["window"] * wanted["parallel"]
    params.cpuparams.n_threads = wanted["threads"]
    params.warmup = False
    params.ui = False
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address}), flush=True)  # noqa: T201
    while sys.stdin.readline():
        pass
    # An orderly shutdown can take seconds and has no benefit.
    os._exit(0)


if __name__ == "__main__":
    main()
