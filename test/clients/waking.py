"""What the tests of both woken agents ask: was it told, was it shown, how soon."""

import time
from collections.abc import Callable

from clients.model import NOTICE, Model, Request
from clients.peer import Peer


def is_online(peer: Peer, name: str) -> bool:
    """Whether the relay has `name` online."""
    found = peer.peers().get(name)
    return found is not None and found.online


def notices(request: Request) -> int:
    """How many notices of hoptell the conversation has."""
    return sum(len(NOTICE.findall(item.text)) for item in request.items if item.kind == "user")


def was_told(text: str) -> Callable[[Request], bool]:
    """That a tool's result shows `text`."""
    return lambda one: any(item.kind == "result" and text in item.text for item in one.items)


def woken_after(model: Model, peer: Peer, text: str, to: str = "reader") -> float:
    """Send to an idle session and return the seconds until its model saw the notice.

    The text must then be shown by `read_inbox`.
    """
    since = model.count()
    sent_at = time.monotonic()
    peer.send(to, text)
    notice = model.wait(lambda one: notices(one) > 0, since=since)
    model.wait(was_told(text), since=since)
    return notice.at - sent_at
