"""The body of a request, up to a limit."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from mempo.ask.served.faults import RequestError

MOST_BYTES: Final = 8 * 1024 * 1024


async def body_of(request: Request) -> bytes:
    """The body. Raises ``RequestError`` beyond ``MOST_BYTES``."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_BYTES:
            raise RequestError(f"the body has more than {MOST_BYTES:,} bytes", status=413)
        parts.append(part)
    return b"".join(parts)
