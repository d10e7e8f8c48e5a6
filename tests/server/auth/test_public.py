"""Listening for others: TLS, a reverse proxy, and what is refused without either."""

import json
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import httpx
import msgspec
import pytest
from tests.cli.client import forked
from tests.server.auth.certificates import certificates
from tests.server.conftest import Served, serve_app

from cloister.app.settings import Settings
from cloister.core.errors import CloisterError
from cloister.server.public import Place, names, place_of, renew, tls_context
from cloister.server.serve import bound, listening
from cloister.server.ws import Sockets
from cloister.testing.samples import SampleRepo

Cloister = Callable[..., subprocess.CompletedProcess[str]]


def with_file(settings: Settings, **more: object) -> Settings:
    return msgspec.structs.replace(settings, file=msgspec.structs.replace(settings.file, **more))


@pytest.mark.parametrize(
    ("given", "port", "code"),
    [
        ({"listen": "0.0.0.0"}, None, "unsafe_listen"),
        ({"listen": "10.1.2.3:80"}, None, "unsafe_listen"),
        ({"listen": "::"}, None, "unsafe_listen"),
        ({"listen": "example.org"}, None, "bad_listen"),
        ({"listen": "127.0.0.1:70000"}, None, "bad_listen"),
        ({"listen": ""}, None, "bad_listen"),
        ({"listen": "127.0.0.1:8000"}, 9000, "bad_listen"),
        ({"tls_cert": "cert.pem"}, None, "bad_listen"),
        ({"tls_key": "key.pem"}, None, "bad_listen"),
    ],
)
def test_an_address_that_is_wrong_or_unsafe_is_refused(
    settings: Settings, given: dict[str, str], port: int | None, code: str
) -> None:
    with pytest.raises(CloisterError) as caught:
        place_of(with_file(settings, **given), port)
    assert caught.value.code == code


def test_where_the_server_listens(settings: Settings) -> None:
    assert place_of(settings) == Place("127.0.0.1", 7717)
    assert place_of(settings, 0) == Place("127.0.0.1", 0)
    assert place_of(with_file(settings, listen="localhost:80")) == Place("127.0.0.1", 80)
    proxied = with_file(settings, listen="[::]:8443", proxies=("10.0.0.0/8",))
    assert place_of(proxied) == Place("::", 8443)
    near = settings.config_path.parent
    secure = with_file(settings, listen="0.0.0.0", tls_cert="c.pem", tls_key="/k.pem")
    assert place_of(secure) == Place("0.0.0.0", 7717, near / "c.pem", Path("/k.pem"))


def test_the_names_in_the_certificate_and_in_the_settings_are_those_of_the_server(tmp_path: Path) -> None:
    made = certificates(tmp_path, "cloister.test", "*.wild.test", "10.0.0.9", "fd00::1")
    place = Place("10.0.0.9", 8443, made.cert, made.key)
    assert names(place, 8443, ["other.test", "third.test:1"]) == {
        "cloister.test:8443", "10.0.0.9:8443", "[fd00::1]:8443", "other.test:8443", "other.test", "third.test:1",
    }  # fmt: skip
    assert "cloister.test" in names(place, 443, [])
    assert names(Place("127.0.0.1", 80), 1, ["a.test"]) == {"a.test", "127.0.0.1:1"}


@pytest.mark.parametrize("broken", ["missing", "text", "other key", "encrypted"])
def test_a_broken_certificate_is_an_error_that_names_the_files(tmp_path: Path, broken: str) -> None:
    made = certificates(tmp_path / "one", "localhost")
    key = made.key
    match broken:
        case "missing":
            made.cert.unlink()
        case "text":
            made.cert.write_text("no certificate")
        case "other key":
            key = certificates(tmp_path / "two", "localhost").key
        case _:
            done = subprocess.run(
                ["openssl", "ec", "-aes128", "-passout", "pass:secret", "-in", key],
                capture_output=True,
                check=True,
            )
            key.write_bytes(done.stdout)
    with pytest.raises(CloisterError) as caught:
        tls_context(Place("127.0.0.1", 0, made.cert, key))
    assert caught.value.code == "bad_certificate"
    assert str(made.cert) in caught.value.message


@pytest.mark.anyio
async def test_a_renewed_certificate_is_used_for_new_connections(tmp_path: Path) -> None:
    made = certificates(tmp_path, "localhost")
    place = Place("127.0.0.1", 0, made.cert, made.key)
    context = tls_context(place)
    assert context is not None

    async def nothing(_scope: object, _receive: object, _send: object) -> None: ...

    def shown(port: int) -> str:
        return ssl.get_server_certificate(("127.0.0.1", port))

    with bound(0) as listener:
        port: int = listener.getsockname()[1]
        async with listening(nothing, listener, Sockets(), tls=context), anyio.create_task_group() as tasks:
            tasks.start_soon(renew, context, place, 0.02)
            first = await anyio.to_thread.run_sync(shown, port)
            assert first == made.cert.read_text()
            made.key.write_text("half written")
            await anyio.sleep(0.1)
            assert await anyio.to_thread.run_sync(shown, port) == first
            certificates(tmp_path, "localhost")
            with anyio.fail_after(30):
                while await anyio.to_thread.run_sync(shown, port) != made.cert.read_text():
                    pass
            tasks.cancel_scope.cancel()


# What a proxy says.


@pytest.mark.anyio
async def test_only_a_trusted_proxy_is_believed(settings: Settings) -> None:
    said = {"X-Forwarded-For": "192.0.2.1, 203.0.113.9", "X-Forwarded-Proto": "https"}
    said["X-Forwarded-Host"] = "cloister.example.org"
    origin = {"Origin": "https://cloister.example.org"}

    async def logins(served: Served) -> list[str | None]:
        found = await served.app.backbone.audit()
        return [json.loads(one.detail).get("from") for one in found if one.kind in ("Login", "LoginRefused")]

    named = with_file(settings, hosts=("cloister.example.org",))
    async with serve_app(named) as served:
        reply = await served.client.get("/v1/runs", headers=said)
        assert reply.status_code == 200  # as called by 127.0.0.1
        assert (await served.client.get("/v1/runs", headers=said | origin)).status_code == 403
        assert await logins(served) == [None, None]
    trusting = with_file(settings, hosts=("cloister.example.org",), proxies=("127.0.0.0/8",))
    async with serve_app(msgspec.structs.replace(trusting, data_dir=settings.data_dir / "b")) as served:
        assert (await served.client.get("/v1/runs", headers=said | origin)).status_code == 200
        # What the client itself wrote, to the left of what the proxy saw, is not its address.
        assert await logins(served) == ["203.0.113.9"]
        plain = said | {"X-Forwarded-Proto": "http"}
        assert (await served.client.get("/v1/runs", headers=plain | origin)).status_code == 403
        open_origin = {"Origin": "http://cloister.example.org"}
        assert (await served.client.get("/v1/runs", headers=plain | open_origin)).status_code == 200
        other = said | {"X-Forwarded-Host": "evil.example"}
        assert (await served.client.get("/v1/runs", headers=other)).status_code == 421
        odd = {"X-Forwarded-For": "not an address", "X-Forwarded-Proto": "gopher"}
        assert (await served.client.get("/v1/runs", headers=odd)).status_code == 200


# The command, as a person uses it.


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "server" / "data"


@pytest.fixture
def cloister(data_dir: Path, tmp_path: Path) -> Cloister:
    def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
        usual = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "USER": "tester",
            "CLOISTER_DATA_DIR": str(data_dir),
        }
        return forked.run(args, cwd=tmp_path, env=usual | env)

    return run


@contextmanager
def running(cloister: Cloister, *options: str) -> Generator[dict[str, str]]:
    started = cloister("serve", "--background", "--port", "0", *options)
    assert started.returncode == 0, started.stderr
    try:
        yield json.loads(cloister("serve", "--status", "--json").stdout)
    finally:
        assert cloister("serve", "--stop").returncode == 0


def works_at(cloister: Cloister, url: str, token: str, ca: Path) -> None:
    """Start a run through `url` and watch it over a WebSocket."""
    env = {"CLOISTER_SERVER": url, "CLOISTER_TOKEN": token, "CLOISTER_CA": str(ca)}
    done = cloister("run", "fix it", "--repo", ".", "--model", "script:broken.toml", "--json", **env)
    assert [json.loads(line)["body"]["type"] for line in done.stdout.splitlines()][-1:] == ["RunFinished"], (
        done.stderr
    )
    assert "failed" in cloister("ps", **env).stdout


def test_the_command_works_over_tls_with_an_authority_of_ones_own(
    cloister: Cloister, data_dir: Path, tmp_path: Path
) -> None:
    SampleRepo(tmp_path).commit()
    (tmp_path / "broken.toml").write_text("this is not TOML")
    made = certificates(tmp_path / "tls", "localhost", "127.0.0.1")
    with running(cloister, "--tls-cert", str(made.cert), "--tls-key", str(made.key)) as place:
        assert place["public"].startswith("https://127.0.0.1:")
        token = (data_dir / "token").read_text().strip()
        url = place["public"].replace("127.0.0.1", "localhost")
        works_at(cloister, url, token, made.ca)
        assert "failed" in cloister("ps").stdout, "a command of this machine needs no certificate"
        untrusted = cloister("ps", CLOISTER_SERVER=url, CLOISTER_TOKEN=token)
        assert untrusted.returncode == 3
        assert untrusted.stderr.startswith(f"cloister: The certificate of {url} is not trusted (")
        assert "CLOISTER_CA" in untrusted.stderr
        unread = cloister("ps", CLOISTER_SERVER=url, CLOISTER_TOKEN=token, CLOISTER_CA=str(tmp_path / "no"))
        assert "cannot be read as certificates" in unread.stderr
        plain = url.replace("https", "http")
        answer = cloister("ps", CLOISTER_SERVER=plain, CLOISTER_TOKEN=token)
        assert (answer.returncode, answer.stdout) == (3, "")
        swapped = cloister("ps", CLOISTER_SERVER=place["url"].replace("http", "https"), CLOISTER_TOKEN=token)
        assert "does not speak TLS" in swapped.stderr


NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {cert}; ssl_certificate_key {key};
    location / {{
      proxy_pass {upstream};
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_http_version 1.1;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $http_connection;
      proxy_buffering off;
      proxy_read_timeout 1h;
      client_max_body_size 0;
    }}
  }}
}}
"""


def test_the_command_works_through_nginx(cloister: Cloister, data_dir: Path, tmp_path: Path) -> None:
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin")
    if program is None:
        pytest.skip("this machine has no nginx")
    SampleRepo(tmp_path).commit()
    (tmp_path / "broken.toml").write_text("this is not TOML")
    made = certificates(tmp_path / "tls", "cloister.test", "localhost")
    with bound(0) as free:
        port: int = free.getsockname()[1]
    data_dir.mkdir(parents=True)
    (data_dir / "config.toml").write_text(f'hosts = ["localhost:{port}"]\nproxies = ["127.0.0.1"]\n')
    with running(cloister) as place:
        assert "public" not in place
        folder = tmp_path / "nginx"
        folder.mkdir()
        text = NGINX.format(folder=folder, port=port, cert=made.cert, key=made.key, upstream=place["url"])
        (folder / "nginx.conf").write_text(text)
        proxy = subprocess.Popen([program, "-c", folder / "nginx.conf", "-e", folder / "error.log"])
        try:
            url, trusted = f"https://localhost:{port}", ssl.create_default_context(cafile=made.ca)
            with httpx.Client(verify=trusted, trust_env=False, transport=None) as client:
                answer = until_up(client, url, proxy)
                assert answer.json()["ok"] is True
                foreign = client.get(f"{url}/v1/runs", headers={"Origin": "https://evil.example"})
                assert foreign.json()["code"] == "bad_origin"
                own = {"Origin": url, "Authorization": f"Bearer {(data_dir / 'token').read_text().strip()}"}
                assert client.get(f"{url}/v1/runs", headers=own).json() == []
                assert client.get(url, headers={"Host": "cloister.test"}).json()["code"] == "bad_host"
            works_at(cloister, url, (data_dir / "token").read_text().strip(), made.ca)
        finally:
            proxy.terminate()
            proxy.wait(30)


def until_up(client: httpx.Client, url: str, proxy: "subprocess.Popen[bytes]") -> httpx.Response:
    while True:
        try:
            return client.get(f"{url}/v1/health")
        except httpx.ConnectError:
            assert proxy.poll() is None, "nginx did not start"


ELSEWHERE = """
ip link set lo up && ip address add 10.77.0.1/32 dev lo && ip address add 10.77.0.2/32 dev lo || exit 90
{python} -m cloister serve --listen 10.77.0.1 --port 7717 >server.out 2>&1 &
server=$!
until grep -q listens server.out; do kill -0 $server || {{ cat server.out; exit 91; }}; sleep 0.05; done
{python} - <<'EOF'
import http.client, json
for source in ("10.77.0.1", "10.77.0.2"):
    there = http.client.HTTPConnection("10.77.0.1", 7717, source_address=(source, 0))
    there.request("GET", "/v1/health", headers={{"Host": "cloister.test"}})
    reply = there.getresponse()
    print(reply.status, json.loads(reply.read()).get("code", "ok"))
EOF
kill $server; wait $server
"""


def test_on_another_address_without_tls_only_the_proxy_is_served(data_dir: Path, tmp_path: Path) -> None:
    data_dir.mkdir(parents=True)
    (data_dir / "config.toml").write_text('hosts = ["cloister.test"]\nproxies = ["10.77.0.2"]\n')
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CLOISTER_DATA_DIR": str(data_dir)}
    done = subprocess.run(
        ["unshare", "--net", "bash", "-c", ELSEWHERE.format(python=sys.executable)],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "403 tls_needed\n200 ok\n", done.stderr
