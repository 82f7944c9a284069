"""Which way this session is woken: set by HOPTELL_PUSH, else found out, and whether it is proven.

A way counts as proven by what only a session that it wakes can have shown: a listener of this
very Claude Code process has connected (hook); the process was started with channels for this
server (channel); a tool call of Codex told its thread and what was queued for it has not been
left unread (codex). What is merely likely, Claude Code without a hook that came, Codex before
its first tool call, is said to be unproven and is not shown to other peers.

The ways in which hoptell does not announce anything itself are here too: `tmux` (another
process does), `listener` and `poll` (the agent does).
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hoptell.sidecar.channel import ChannelWake, Client
from hoptell.sidecar.codex import CodexWake
from hoptell.sidecar.wake import Notice

if TYPE_CHECKING:
    from hoptell.processes import Process
    from hoptell.sidecar.claude import HookWake

HOOK_WAIT = 0.3
"""Seconds at the start in which a hook, which starts at the same moment, may prove itself. The
handshake waits for it, and has to be answered within a second."""


class Waking:
    """This session's way of being woken: announces through it, and says which it is.

    An async context manager. `push` is HOPTELL_PUSH; `unread` says whether messages wait;
    `on_change` is called when an announcement that failed may now succeed, or `shown` may
    have changed.

    Attributes:
        mode: the way that is expected to work here, one of SPEC.md's wake modes.
    """

    def __init__(
        self,
        push: str | None,
        home: Path,
        client: Client,
        *,
        unread: Callable[[], bool],
        on_change: Callable[[], None],
    ) -> None:
        self._on_change = on_change
        self._hook: HookWake | None = None
        self._codex: CodexWake | None = None
        self._channel: ChannelWake | None = None
        self.mode = push or self._find_out(home)
        if self.mode == "hook":
            self._hook = self._make_hook(home)
        elif self.mode == "channel":
            self._channel = ChannelWake(client)
        elif self.mode == "codex":
            self._codex = CodexWake(unread, on_thread=on_change)

    def _find_out(self, home: Path) -> str:
        """The first of hook, channel, codex, listener that can be expected to work here."""
        if os.name != "posix":
            return "listener"
        from hoptell.sidecar import claude, registry

        process = claude.claude_code()
        if process is None:
            return "codex" if _under_codex() else "listener"
        if registry.listener_of(home, process) is None and claude.has_channel(
            registry.arguments(process.pid), plugin="CLAUDE_PLUGIN_ROOT" in os.environ
        ):
            return "channel"
        return "hook"

    def _make_hook(self, home: Path) -> "HookWake | None":
        from hoptell.sidecar import claude

        process: Process | None = claude.claude_code()
        return None if process is None else claude.HookWake(home, process, self._on_change)

    async def __aenter__(self) -> Self:
        if self._hook is not None:
            await self._hook.__aenter__()
            await self._hook.wait_proven(HOOK_WAIT)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._codex is not None:
            self._codex.close()
        if self._hook is not None:
            await self._hook.__aexit__(exc_type, exc_value, traceback)
