"""The command line of ``mempo ask --serve``."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mempo.ask.served.chat_reply import Rounds

PORT: Final = 8766
HOST: Final = "127.0.0.1"
_OWN: Final = ("host", "port", "rounds", "token_variable", "allow_origin")


@dataclass(frozen=True)
class Serving:
    """How the agent is served. ``token``: what requests have to bring. ``origins``: of the pages
    that may ask from elsewhere."""

    host: str
    port: int
    rounds: Rounds
    token: str | None
    origins: tuple[str, ...] = ()


def add_serving_options(parser: argparse.ArgumentParser) -> None:
    """``--serve`` and what goes with it; what is not given is ``None``."""
    group = parser.add_argument_group("a page and an endpoint")
    group.add_argument(
        "--serve",
        action="store_true",
        help="a page to ask on, and the agent as a chat-completions endpoint",
    )
    group.add_argument("--port", type=int, metavar="N", help=f"default {PORT}; 0: any free one")
    group.add_argument(
        "--host",
        metavar="ADDRESS",
        help=f"default {HOST}, this machine alone; 0.0.0.0: other machines too, with a token",
    )
    group.add_argument(
        "--token-variable",
        metavar="NAME",
        help="the environment variable that holds the token (default MEMPO_TOKEN)",
    )
    group.add_argument(
        "--allow-origin",
        metavar="ORIGIN",
        action="append",
        help="a chat page from elsewhere that may ask, such as http://localhost:3000; repeatable",
    )
    group.add_argument(
        "--rounds",
        choices=("hidden", "reasoning", "whole"),
        help="what the endpoint does with the rounds: hidden (default), told as reasoning, or "
        "whole in the answer's text",
    )


def read_serving(
    options: argparse.Namespace, parser: argparse.ArgumentParser, question: str | None
) -> Serving | None:
    """``None`` without ``--serve``. Raises ``MempoError`` where a token is needed."""
    if not options.serve:
        given = [name for name in _OWN if getattr(options, name) is not None]
        if given:
            parser.error(f"--{given[0].replace('_', '-')} goes with --serve")
        return None
    if question is not None or options.compare or options.json:
        parser.error("--serve takes one model and no question, --compare or --json")
    port = PORT if options.port is None else options.port
    if not 0 <= port <= 65535:
        parser.error("--port must be from 0 (any free one) to 65535")
    host = HOST if options.host is None else options.host.strip()
    variable = options.token_variable
    if not host or (variable is not None and not variable.strip()):
        parser.error("--host and --token-variable must not be empty")
    from mempo.ask.served.access import TOKEN_VARIABLE, read_origins, read_token

    token = read_token(host, variable or TOKEN_VARIABLE, variable is not None)
    origins = read_origins(options.allow_origin or ())
    return Serving(host, port, options.rounds or "hidden", token, origins)
