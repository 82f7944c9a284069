"""The relay's side of the sidecar: store, confirm, announce; send and list.

Every delivery is stored in the inbox, then confirmed, then announced. If it cannot be stored
it stays unconfirmed, the connection is given up, and the relay delivers it again later.

The sidecar outlives every problem here, since its client starts it once a session: broken
settings are read again, a relay that is away is tried again, and one that refused the login
is asked again when the settings have changed or a tool is called. Meanwhile every tool says
in one sentence what is wrong.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

from hoptell.client import RelayClient
from hoptell.errors import HoptellError, LoginRefused, RelayUnreachable
from hoptell.frames import Ack, Mode, PeerInfo
from hoptell.settings import PeerSettings, default_name
from hoptell.sidecar.mailbox import Mailbox

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT = 3.0
"""Seconds that a tool waits for a connection that is being made."""
RETRY_WAITS = (0.5, 30.0)
"""Seconds before what failed is tried again: at first, and at most. A tool call shortens it to
the first."""
STABLE_AFTER = 60.0
"""A connection that lived so long starts the waits from their beginning."""


class RelaySide:
    """This session's connection to the relay, made and kept by `run`.

    `settings` reads the settings, again whenever they could not be used. `wake` is shown to
    other peers. `send_only`: another process is online under this name.
    """

    def __init__(
        self,
        settings: Callable[[], PeerSettings],
        mailbox: Mailbox,
        *,
        wake: str | None,
        send_only: bool = False,
    ) -> None:
        self._read_settings = settings
        self._mailbox = mailbox
        self._wake = wake
        self._send_only = send_only
        self._settings: PeerSettings | None = None
        self._client: RelayClient | None = None
        self._problem: HoptellError = RelayUnreachable("hoptell is still starting: try again")
        self._failures = 0
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()

    @property
    def name(self) -> str:
        """The peer name of this session."""
        return (self._settings and self._settings.name) or default_name()

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that it announces."""
        return () if self._settings is None else self._settings.roles

    @property
    def problem(self) -> str | None:
        """Why there is no connection now, in one sentence; None if there is one."""
        return str(self._problem) if self._client is None else self._client.problem

    def show_wake(self, wake: str) -> None:
        """Let other peers see this wake mode from now on."""
        self._wake = wake
        if self._client is not None:
            self._client.show_wake(wake)

    # For the tools ------------------------------------------------------------------------

    async def send(
        self, to: str, text: str, *, ttl: int | None = None, reply_to: str | None = None
    ) -> Ack:
        """Send a message, and return what became of it.

        Raises:
            HoptellError: it was not sent, or not for sure; the sentence says why and what to do.
        """
        client = await self.connected()
        try:
            return await client.send(to, text, ttl=ttl, reply_to=reply_to)
        except RelayUnreachable as error:
            if self._client is client:
                raise
            became = (
                "the message may have been accepted already: sent again, it could arrive twice"
                if error.maybe_accepted
                else "the message was not sent"
            )
            raise RelayUnreachable(
                f"{self._problem}; {became}", maybe_accepted=error.maybe_accepted
            ) from error

    async def list_peers(self) -> list[PeerInfo]:
        """Everyone that the relay knows but this session.

        Raises:
            HoptellError: there is no connection; the sentence says why and what to do.
        """
        client = await self.connected()
        try:
            return await client.list_peers()
        except RelayUnreachable as error:
            if self._client is client:
                raise
            raise self._problem.with_traceback(None) from error  # why the client was given up

    async def connected(self, timeout: float = CONNECT_TIMEOUT) -> RelayClient:
        """Wait for the connection, `timeout` seconds and never long; what lasts ends the wait.

        Raises:
            HoptellError: why there is none.
        """
        self._wanted.set()
        failures = self._failures
        timeout = min(timeout, CONNECT_TIMEOUT)
        try:
            async with asyncio.timeout(timeout):
                while self._client is None:
                    if self._failures != failures:
                        raise self._problem.with_traceback(None)
                    await self._changed.wait()
        except TimeoutError:
            raise self._problem.with_traceback(None) from None
        client = self._client
        await client.wait_connected(timeout)
        return client

    # Being online -------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Be online whenever that is possible, until cancelled."""
        now = asyncio.get_running_loop().time
        wait, longest = RETRY_WAITS
        while True:
            began_at = now()
            self._wanted.clear()
            try:
                self._settings = settings = self._read_settings()
                await self._mailbox.use(settings.home, self.name)
                await self._serve(settings)
            except HoptellError as problem:
                self._fail(problem)
            except Exception as bug:
                logger.exception("the connection to the relay broke down")
                self._fail(HoptellError(f"hoptell failed within ({type(bug).__name__}): retrying"))
            if now() - began_at >= STABLE_AFTER:
                wait = RETRY_WAITS[0]
            await self._pause(wait)
            wait = min(wait * 2, longest)

    async def _serve(self, settings: PeerSettings) -> None:
        mode: Mode = "send" if self._send_only else "peer"
        async with RelayClient(settings, name=self.name, mode=mode, wake=self._wake) as client:
            self._client = client
            self._tell()
            try:
                async for delivery in client:
                    await self._mailbox.store(delivery.message)
                    await delivery.confirm()
            finally:
                self._client = None

    def _fail(self, problem: HoptellError) -> None:
        if str(problem) != str(self._problem):
            logger.warning("not online: %s", problem)
        self._problem = problem
        self._mailbox.problem = problem
        self._failures += 1
        self._tell()

    async def _pause(self, wait: float) -> None:
        """Wait before the next attempt; after a refused login, until something has changed."""
        await asyncio.sleep(RETRY_WAITS[0])
        while not self._wanted.is_set():
            try:
                async with asyncio.timeout(wait):
                    await self._wanted.wait()
            except TimeoutError:
                if not isinstance(self._problem, LoginRefused) or self._settings_changed():
                    return

    def _settings_changed(self) -> bool:
        try:
            return self._read_settings() != self._settings
        except HoptellError:
            return False

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
