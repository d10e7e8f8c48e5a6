"""Which server a client speaks to: its arguments, then the environment, then the server of the data directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cloister.core.errors import HostError, UserError

if TYPE_CHECKING:
    from cloister.cli.client.http import Server, Transport
    from cloister.cli.client.remote import RemoteVerbs


class Place:
    """Where a server is; found again for each request, because a restarted one may have another port."""

    def __init__(
        self, server: str | None, token: str | None, data_dir: str | Path | None, ca: str | Path | None
    ) -> None:
        self._server = server
        self._token = token
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._ca = None if ca is None else Path(ca)

    def transport(self) -> Transport:
        from cloister.cli.client.http import Transport

        async def find() -> Server:
            return self.server()

        return Transport(find)

    def server(self) -> Server:
        """Raises `UserError` (`bad_server`, `no_token`) or `HostError` (`no_server`)."""
        from cloister.cli.client.http import Server, check_url

        if self._server is not None and self._token is not None:
            return Server(check_url(self._server), _checked(self._token), self._ca)
        from cloister.app.settings import read_settings

        settings = read_settings(data_dir=self._data_dir)
        named = self._server or (settings.server if self._data_dir is None else None)
        if named:
            token = settings.token if self._token is None else self._token
            return Server(check_url(named), _checked(token), self._ca or settings.ca)
        from cloister.cli.client.discover import living

        found = living(settings.data_dir)
        if found is None:
            raise HostError(
                "no_server",
                f"No server runs on {settings.data_dir}: start one with `cloister serve --background`, "
                "or give the address of another one.",
            )
        return Server(found.url, self._token or found.token(), self._ca)


def _checked(token: str) -> str:
    if not token or not token.isascii() or not token.isprintable():
        raise UserError("no_token", "No token for that server: give `token`, or set CLOISTER_TOKEN.")
    return token


def verbs_at(place: Place) -> RemoteVerbs:
    """Everything that a caller can do there."""
    from cloister.cli.client.remote import RemoteVerbs

    return RemoteVerbs(place.transport())
