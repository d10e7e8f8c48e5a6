"""Git over HTTP for tests, by git's own CGI program."""

import os
import subprocess
from http.server import BaseHTTPRequestHandler
from pathlib import Path


def answer(handler: BaseHTTPRequestHandler, root: Path, body: bytes, *, user: str = "") -> int:
    """Answer a request for a repository below `root`; return the size of the answer. Pushes need a `user`."""
    path, _, query = handler.path.partition("?")
    env = {
        "PATH": os.environ["PATH"],
        "GIT_PROJECT_ROOT": str(root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "REQUEST_METHOD": handler.command,
        "CONTENT_TYPE": handler.headers.get("Content-Type", ""),
        "HTTP_CONTENT_ENCODING": handler.headers.get("Content-Encoding", ""),
        "GIT_PROTOCOL": handler.headers.get("Git-Protocol", ""),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        **({"REMOTE_USER": user} if user else {}),
    }
    done = subprocess.run(["git", "http-backend"], env=env, input=body, capture_output=True, check=False)
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
    handler.send_response(int(fields.pop("Status", "200").split()[0]))
    for name, value in fields.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)
    return len(content)
