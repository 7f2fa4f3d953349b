"""The address that a server of the project listens on."""

from __future__ import annotations

import errno
import socket

from mempo.runtime.errors import MempoError


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """A listening socket and its address as a browser takes it; ``port`` 0 takes a free one.

    Raises ``MempoError`` for a port that is taken and a host that is not this machine's.
    """
    named = f"[{host}]" if ":" in host else host
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, TypeError) as error:  # the latter for a name that cannot be written
        cause = getattr(error, "strerror", None) or error
        remedy = (
            "choose another --port"
            if isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES)
            else "give --host an address of this machine, 127.0.0.1 or 0.0.0.0"
        )
        raise MempoError(f"cannot listen on {named}:{port} ({cause}): {remedy}") from None
    return listening, f"http://{named}:{listening.getsockname()[1]}"
