"""Waking Claude Code by a channel notification.

The client acknowledges nothing, drops what comes too early, and silently removes `meta` keys
with anything but letters, digits and underscores. So the notification carries the notice
only, is sent once the client has said that it is initialized, and the messages stay in the
inbox until they are read. A sidecar that is started anew (/mcp) announces once more what is
unread: whether anybody saw the earlier notification, it cannot know.
"""

from typing import Protocol

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification

from hoptell.sidecar.wake import SHOWN_SENDERS, Notice

CAPABILITY = "claude/channel"
"""What the `initialize` answer must declare as experimental, or every notification is dropped."""
METHOD = "notifications/claude/channel"


class Client(Protocol):
    """The wire to the client."""

    async def send(self, item: SessionMessage, /) -> None: ...


class ChannelWake:
    """Pushes the notice to the client whose wire this is."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def announce(self, notice: Notice) -> None:
        """Write the notification; raises what the wire raises when the client is gone."""
        meta = {
            "count": str(notice.count),
            "from": ",".join(sender.name for sender in notice.senders[:SHOWN_SENDERS]),
        }
        params = {"content": str(notice), "meta": meta}
        message = JSONRPCNotification(jsonrpc="2.0", method=METHOD, params=params)
        await self._client.send(SessionMessage(message))
