"""A real Pagure: Debian's package in a root of its own, which is built once and cached outside the repository."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.conftest import CACHE
from tests.forge.pulls.wires import Pull

from cloister.core.errors import HostError
from cloister.sandbox.templates.debian import host_release, read_sources

ROOT = CACHE / "pagure-trixie"
SETTINGS = """
SECRET_KEY = SALT_EMAIL = "test"
DB_URL = "sqlite:////var/lib/pagure/pagure.sqlite"
EMAIL_SEND = FEDMSG_NOTIFICATIONS = False
APP_URL = "http://127.0.0.1:{port}/"
GIT_FOLDER = "/var/lib/pagure/repositories"
REMOTE_GIT_FOLDER = "/var/lib/pagure/remotes"
GIT_AUTH_BACKEND = "pagure"
GITOLITE_CONFIG = HTTP_REPO_ACCESS_GITOLITE = None
ALLOW_HTTP_PUSH = ALLOW_HTTP_PULL_PUSH = True
PAGURE_AUTH = "local"
REDIS_SOCKET = "/run/redis.sock"
ALLOWED_PREFIX = ["team"]
GIT_DEFAULT_BRANCH = "main"
"""
# Runs inside the root: people and their tokens, for which Pagure has no API.
SEED = """
import datetime
import json
import sys
from pathlib import Path

import pagure.config
import pagure.lib.model_base
from pagure.lib import query
from pagure.lib.login import generate_hashed_value

config = pagure.config.config
session = pagure.lib.model_base.create_session(config["DB_URL"])
for name in ("cloister", "ann", "eve"):
    user = query.set_up_user(session, name, name.title(), f"{name}@example.org")
    user.password = generate_hashed_value(name).encode()  # git's door checks it before the token
session.commit()
until = datetime.datetime.now(tz=datetime.UTC).date() + datetime.timedelta(days=30)
tokens = {
    name: query.add_token_to_user(session, None, list(config["ACLS"]), name, until).id
    for name in ("cloister", "ann", "eve")
}
session.commit()
Path(sys.argv[1]).write_text(json.dumps(tokens))
"""
# Debian's Werkzeug writes the headers of Pagure's git replies as `b'…'`, which git rejects.
WSGI = """
from pagure.flask_app import create_app

pagure = create_app()


def application(environ, start):
    def begin(status, headers, *more):
        plain = [(name, value[2:-1] if value.startswith("b'") else value) for name, value in headers]
        return start(status, plain, *more)

    return pagure(environ, begin)
"""
# All state is on tmpfs in a mount namespace of its own, and ends with it.
START = """
set -e
mount --bind "$1" "$1"
for name in var/lib/pagure run tmp; do mount -t tmpfs tmpfs "$1/$name"; done
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
cp "$2/pagure.cfg" "$2/pagure_seed.py" "$2/door.py" "$1/tmp/"
mkdir "$1/tmp/out"
mount --bind "$2" "$1/tmp/out"
exec chroot "$1" /usr/bin/env -i PAGURE_CONFIG=/tmp/pagure.cfg HOME=/tmp PATH=/usr/sbin:/usr/bin:/sbin:/bin PORT="$3" sh -ec '
cd /tmp
mkdir -p /var/lib/pagure/repositories /var/lib/pagure/remotes
redis-server --port 0 --unixsocket /run/redis.sock --save "" --daemonize yes
python3 /usr/share/pagure/createdb.py -c /tmp/pagure.cfg
python3 /tmp/pagure_seed.py /tmp/out/tokens.json
celery -A pagure.lib.tasks worker --pool=solo --loglevel=error &
exec gunicorn --no-sendfile --threads 4 -b "127.0.0.1:$PORT" door:application
'
"""


def build() -> Path:
    """The root with Pagure. Skips the test where it cannot be built."""
    if (ROOT / "usr/share/pagure").is_dir():
        return ROOT
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        pytest.skip("Pagure's root needs root and mmdebstrap")
    try:
        mirror = read_sources(host_release())[0].line().split()
    except HostError as error:
        pytest.skip(error.message)
    address = next(word for word in mirror if "://" in word)
    new = ROOT.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    new.parent.mkdir(parents=True, exist_ok=True)
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
    made = subprocess.run(
        [
            *("unshare", "--mount", "--propagation=private", "--", "mmdebstrap", "--mode=root"),
            *("--variant=minbase", "--format=directory", "--include=pagure,redis-server,gunicorn"),
            *(*left_out, "trixie", str(new), f"deb {address} trixie main"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    if made.returncode != 0:
        shutil.rmtree(new, ignore_errors=True)
        pytest.skip(f"Debian's pagure cannot be installed here: {made.stderr.splitlines()[-1:]}")
    new.rename(ROOT)
    return ROOT


@dataclass
class Pagure:
    """The server, with a token for each person; `cloister` owns the projects."""

    url: str
    tokens: dict[str, str]
    made: int = 0

    def ask(self, method: str, path: str, who: str = "cloister", **form: Any) -> Any:
        headers = {"Authorization": f"token {self.tokens[who]}"}
        reply = httpx2.request(
            method, f"{self.url}/api/0/{path}", headers=headers, data=form or None, timeout=60
        )
        assert reply.status_code == 200, (path, reply.status_code, reply.text[:500])
        return reply.json()

    def project(self, work: Path) -> str:
        """A new project with the branches of the repository `work`; `ann` may push to it. Return its path."""
        self.made += 1
        path = f"team/shop{self.made}"
        self.ask(
            "POST",
            "new",
            name=path.removeprefix("team/"),
            namespace="team",
            description="a shop",
            wait="true",
        )
        known = f"//cloister:{self.tokens['cloister']}@"
        address = f"{self.url.replace('//', known)}/{path}.git"
        subprocess.run(["git", "-C", str(work), "push", "-q", address, "main", "fix"], check=True)
        self.ask("POST", f"{path}/git/modifyacls", user_type="user", name="ann", acl="commit")
        return path

    def pull(self, path: str, number: int) -> Pull:
        found = self.ask("GET", f"{path}/pull-request/{number}")
        return Pull(
            number, found["branch_from"], found["branch"], found["title"], found["initial_comment"] or ""
        )


def _until(what: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 120
    while not what():
        ended = process.poll() is not None or time.monotonic() > deadline
        assert not ended, log.read_text(errors="replace")[-3_000:]
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/api/0/version", timeout=30).status_code == 200
    except httpx2.HTTPError:
        return False


@contextmanager
def served(root: Path, folder: Path) -> Generator[Pagure]:
    """Pagure on a free port of this machine, until the block ends. `folder` gets its log and tokens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    (folder / "pagure.cfg").write_text(SETTINGS.format(port=port))
    (folder / "door.py").write_text(WSGI)
    (folder / "pagure_seed.py").write_text(SEED)
    log = folder / "pagure.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private", "--"),
                *("sh", "-c", START, "sh", str(root), str(folder), str(port)),
            ],
            stdout=out,
            stderr=out,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _until(lambda: _answers(url), process, log)
            yield Pagure(url, json.loads((folder / "tokens.json").read_text()))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
