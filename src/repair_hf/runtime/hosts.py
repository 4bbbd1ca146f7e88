"""Which requests a server on this machine answers: those whose header `Host` names it.

A page from elsewhere can point a name of its own at 127.0.0.1 and read what is served there (DNS rebinding). Its
requests still carry that name.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

REFUSAL = "This server answers requests to its own address only; open the address that it printed."
LOOPBACK = ("127.0.0.1", "localhost", "::1")

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


def is_own_host(header: str | None, bound: str) -> bool:
    """Return whether a header `Host` names a server that listens on the address `bound`.

    The port does not matter: a tunnel may have another. A server for everybody (0.0.0.0) answers to any IP address,
    because it may have several, and to this machine's name.
    """
    name = (header or "").strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name in (bound.lower(), *LOOPBACK):
        return True
    if bound not in ("0.0.0.0", "::"):
        return False
    return _is_address(name) or name in (socket.gethostname().lower(), socket.getfqdn().lower())


class OwnHostOnly:
    """An ASGI middleware that refuses requests and websockets for other hosts than the one in `bound`."""

    def __init__(self, app: App, bound: str) -> None:
        self.app, self.bound = app, bound

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        named = dict(scope.get("headers", ())).get(b"host", b"").decode("latin-1")
        if scope["type"] == "lifespan" or is_own_host(named, self.bound):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 421, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": REFUSAL.encode()})


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
