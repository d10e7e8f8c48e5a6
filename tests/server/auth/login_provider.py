"""A login provider of our own making, which can also say what an honest one never says."""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwk, jws

CLIENT, SECRET = "cloister", "the client's secret %&:"
Key = jwk.RSAKey | jwk.ECKey


class LoginProvider:
    """Issues a code for each address that `authorize` is given; the attributes bend what follows."""

    def __init__(self) -> None:
        self.key: Key = jwk.RSAKey.generate_key(2048, {"kid": "first"})
        self.published: list[Any] = [self.key]
        self.algorithm = "RS256"
        self.kid: str | None = "first"
        self.claims: dict[str, Any] = {}
        """Takes the place of claims of the token; None leaves one out."""
        self.facts: dict[str, Any] = {"email": "ada@example.org", "email_verified": True, "groups": ["dev"]}
        self.token: Callable[[bytes], str] | None = None
        """Makes the token from its claims."""
        self.metadata: dict[str, Any] = {}
        self.answer: tuple[int, bytes] | None = None
        """Answers everything."""
        self.raw_keys: bytes | None = None
        self.looks = 0
        """How often the keys were asked for."""
        self.port = 0
        self._codes: dict[str, dict[str, str]] = {}

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def settings(self, **more: str) -> str:
        lines = {"issuer": self.issuer, "client_id": CLIENT, "client_secret": "env:OIDC_SECRET", **more}
        table = "\n".join(f"{name} = {json.dumps(value)}" for name, value in lines.items())
        return f'[oidc]\n{table}\ngroups = {{ dev = "operator", ops = "admin" }}\n'

    def authorize(self, address: str) -> str:
        """What a browser is sent back to after its person has agreed."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert asked["client_id"] == CLIENT and asked["code_challenge_method"] == "S256"
        assert asked["response_type"] == "code" and "openid" in asked["scope"].split()
        code = f"code-{len(self._codes)}"
        self._codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state'], 'iss': self.issuer})}"

    def _token(self, asked: dict[str, str]) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "sub": "u-1",
            "aud": CLIENT,
            "exp": now + 300,
            "iat": now,
            "nonce": asked["nonce"],
            **self.facts,
            **self.claims,
        }
        content = json.dumps({name: value for name, value in claims.items() if value is not None}).encode()
        if self.token is not None:
            return self.token(content)
        header = {"alg": self.algorithm} | ({} if self.kid is None else {"kid": self.kid})
        return jws.serialize_compact(header, content, self.key, algorithms=[self.algorithm])

    def reply(self, path: str, form: dict[str, str], authorization: str) -> tuple[int, bytes]:
        if self.answer is not None:
            return self.answer
        if path == "/.well-known/openid-configuration":
            names = {"authorization_endpoint": "/auth", "token_endpoint": "/token", "jwks_uri": "/keys"}
            found = {"issuer": self.issuer} | {name: self.issuer + at for name, at in names.items()}
            return 200, json.dumps(
                found | {"userinfo_endpoint": f"{self.issuer}/me"} | self.metadata
            ).encode()
        if path == "/keys":
            self.looks += 1
            return 200, self.raw_keys or json.dumps(
                {"keys": [key.as_dict(private=False) for key in self.published]}
            ).encode()
        if path == "/me":
            return 200, json.dumps({"sub": "u-1", **self.facts}).encode()
        return self._exchange(form, authorization)

    def _exchange(self, form: dict[str, str], authorization: str) -> tuple[int, bytes]:
        pair = f"{urlencode({'': CLIENT})[1:]}:{urlencode({'': SECRET})[1:]}"
        if authorization != f"Basic {base64.b64encode(pair.encode()).decode()}":
            return 401, b'{"error": "invalid_client"}'
        asked = self._codes.pop(form.get("code", ""), None)
        if asked is None:
            return 400, b'{"error": "invalid_grant"}'
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        right = base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == asked["code_challenge"]
        if not right or form["redirect_uri"] != asked["redirect_uri"]:
            return 400, b'{"error": "invalid_grant"}'
        return 200, json.dumps(
            {"id_token": self._token(asked), "access_token": "a", "token_type": "Bearer"}
        ).encode()


@contextmanager
def login_provider() -> Generator[LoginProvider]:
    provider = LoginProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            self._answer({name: values[0] for name, values in parse_qs(body).items()})

        def _answer(self, form: dict[str, str]) -> None:
            path = urlsplit(self.path).path
            status, content = provider.reply(path, form, self.headers.get("authorization", ""))
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()
