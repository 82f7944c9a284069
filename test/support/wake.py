"""A way of waking that does nothing, for what needs one."""

from hoptell.sidecar.wake import Notice


class Silent:
    """Takes every notice, and tells nobody."""

    async def announce(self, notice: Notice) -> None:
        pass
