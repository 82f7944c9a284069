"""What the relay's port answers to plain HTTP (docs/protocol.md)."""

import email.utils
from collections.abc import Callable
from http import HTTPStatus

from websockets.datastructures import Headers
from websockets.http11 import Request, Response


def answer(request: Request, metrics: Callable[[], tuple[str, str]]) -> Response | None:
    """The whole answer to a request, or None if it asks for a WebSocket.

    `metrics` makes the content type and the body of `/metrics`.
    """
    if any("websocket" in value.lower() for value in request.headers.get_all("Upgrade")):
        return None
    path = request.path.partition("?")[0]
    status, content_type = HTTPStatus.OK, "text/plain; charset=utf-8"
    if request.method in ("GET", "HEAD") and path == "/healthz":
        text = "ok\n"
    elif request.method in ("GET", "HEAD") and path == "/metrics":
        content_type, text = metrics()
    else:
        status = HTTPStatus.UPGRADE_REQUIRED
        text = "This is a hoptell relay: connect with `hoptell`, by WebSocket.\n"
    body = text.encode()
    headers = Headers(
        [
            ("Date", email.utils.formatdate(usegmt=True)),  # for the doctor to compare clocks
            ("Connection", "close"),
            ("Content-Length", str(len(body))),
            ("Content-Type", content_type),
        ]
    )
    if status == HTTPStatus.UPGRADE_REQUIRED:
        headers["Upgrade"] = "websocket"
    return Response(status, status.phrase, headers, b"" if request.method == "HEAD" else body)
