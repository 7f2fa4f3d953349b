"""Who may ask: this machine's own pages and programs, and from elsewhere those that know the token.

A page of another site can send requests to a server on this machine, and can reach it under a name
of its own. So without a token only this machine's names are answered, no page of another origin is
but those that were named, and a body must be declared as JSON, which such a page cannot do unasked.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mempo.ask.served.faults import RequestError
from mempo.runtime.errors import MempoError

TOKEN_VARIABLE: Final = "MEMPO_TOKEN"
FEWEST_CHARACTERS: Final = 16
_OWN_NAMES: Final = re.compile(r"(127(\.\d{1,3}){3}|localhost|\[::1\])(:\d+)?")
_ORIGIN: Final = re.compile(r"https?://[a-z0-9.\-]+(:\d{1,5})?|https?://\[[0-9a-f:]+\](:\d{1,5})?")
_OPEN_PATHS: Final = ("/",)
"""The page itself, which holds nothing of the agent and asks for the token."""


def own_machine(host: str) -> bool:
    """Whether only this machine can reach a server on that host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_origins(given: Sequence[str]) -> tuple[str, ...]:
    """Origins of pages as browsers send them. Raises ``MempoError`` for anything else."""
    for one in given:
        if not _ORIGIN.fullmatch(one):
            raise MempoError(
                f"--allow-origin {one}: write the page's scheme and host, as in "
                "http://localhost:3000 or https://chat.example.org, without a path"
            )
    return tuple(given)


def read_token(host: str, variable: str, named: bool) -> str | None:
    """The token in the environment. ``named``: the command line names the variable.

    Raises ``MempoError`` where one is needed and there is none, and for one that is easily guessed.
    """
    token = os.environ.get(variable, "")
    if not token:
        if own_machine(host) and not named:
            return None
        reason = f"{variable} is empty" if named or variable in os.environ else "there is no token"
        raise MempoError(
            f"{reason}: other machines reach --host {host}, so put a token into the environment, "
            f"as in  export {variable}=$(openssl rand -hex 16)"
            if not own_machine(host)
            else f"{variable} is empty: put a token into the environment, or leave "
            "--token-variable out"
        )
    if len(token) < FEWEST_CHARACTERS or not re.fullmatch(r"[!-~]+", token):
        raise MempoError(
            f"the token in {variable} must be at least {FEWEST_CHARACTERS} characters of ASCII "
            "without white space: openssl rand -hex 16  makes one"
        )
    return token


class Access:
    """Lets requests through to ``app``. ``own_names``: only those to this machine's names, and of
    pages from elsewhere only those of ``origins``."""

    def __init__(
        self, app: ASGIApp, token: str | None, own_names: bool, origins: Sequence[str] = ()
    ) -> None:
        self._app = app
        self._token = token
        self._own_names = own_names
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope, Headers(scope=scope))
            except RequestError as error:
                challenge = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
                await error.response(challenge)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._own_names and not _OWN_NAMES.fullmatch(host):
            raise RequestError("open this server by its own address", status=403)
        known = origin is None or origin == f"http://{host}" or origin in self._origins
        if self._own_names and not known:
            raise RequestError(
                "pages of other sites are not answered, but those that --allow-origin names",
                status=403,
            )
        if self._token is not None and scope["path"] not in _OPEN_PATHS:
            given = headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                raise RequestError(
                    "the token is missing or wrong: send it as Authorization: Bearer <token>",
                    status=401,
                    code="invalid_api_key",
                )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            message = "the body must be declared as JSON: Content-Type: application/json"
            raise RequestError(message, status=415)
