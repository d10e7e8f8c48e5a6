"""The process that runs a local model. Started by `_spawn.py` by its path, alone: it imports nothing of Cloister.

Its first line of input says what to serve, its only line of output where. It ends when its input ends, which is
when whoever started it is gone, however that happened.
"""

import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    """Serve until nobody is there any more."""
    xllamacpp: Any = importlib.import_module("xllamacpp")  # which comes without types
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
    # Taking it apart politely can take seconds, and nobody waits for it.
    os._exit(0)


if __name__ == "__main__":
    main()
