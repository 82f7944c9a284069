"""Which way this session is woken: set by HOPTELL_PUSH, else found out, and whether it is proven.

A way counts as proven by what only a session that it wakes can have shown: a listener of this
very Claude Code process has connected (hook); the process was started with channels for this
server, and nothing in its environment turns them off (channel); Codex's thread is known, and what
was queued for it did not stay unread (codex). What is not proven is not shown to other peers.

Beside Claude Code the hook can come at any time, so it is awaited in every mode but its own
words are used only where it came in time. Beside Codex its daemon may tell the thread; if not,
the first tool call does, and the instructions ask for it.
"""

import json
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hoptell import processes
from hoptell.errors import HoptellError
from hoptell.programs import NO_CHANNELS
from hoptell.sidecar import codex
from hoptell.sidecar.codex import CodexWake
from hoptell.sidecar.wake import Notice, Wake

if TYPE_CHECKING:
    from hoptell.sidecar.claude import HookWake

logger = logging.getLogger(__name__)

HOOK_WAIT = 0.3
"""Seconds at the start in which a hook, which starts at the same moment, may prove itself. The
handshake waits for it, and has to be answered within a second."""


_CHANNEL_TOO_LATE = (
    "You should be woken by channel, but hoptell's settings said so after the session had begun:"
    " have your user start it anew."
)


class Waking:
    """Announces in the way that works in this session, and says which it is.

    An async context manager. `push` is HOPTELL_PUSH; `home` the state folder, where hooks find
    this session, if there is one; `channel` is the way of that name, if it can be or was declared
    to the client; `name` is the peer's; `listen_command` waits on its inbox; `unread` says whether
    messages wait; `on_change` is called when an announcement that failed may now succeed, or when
    `shown` may have changed.
    """

    def __init__(
        self,
        push: str | None,
        home: Path | None,
        channel: Wake | None,
        *,
        name: str,
        listen_command: str,
        unread: Callable[[], bool],
        on_change: Callable[[], None],
    ) -> None:
        self._push = push
        self._home = home
        self._name = name
        self._listen_command = listen_command
        self._channel: Wake | None = None
        self._hook: HookWake | None = None
        self._codex: CodexWake | None = None
        if channel and (push == "channel" or (push is None and _has_channel())):
            self._channel = channel
        if push in (None, "hook"):
            self._hook = _hook(home, name, on_change)
        if push == "codex" or (push is None and _is_codex()):
            self._codex = CodexWake(unread, on_change=on_change)

    async def __aenter__(self) -> Self:
        if self._codex is not None:
            self._codex.find()
        if self._hook is not None:
            try:
                await self._hook.__aenter__()
            except (HoptellError, OSError) as error:
                logger.warning("Claude Code cannot be woken by its hook: %s", error)
                self._hook = None
            else:
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

    @property
    def mode(self) -> str:
        """The way that is used, one of the wake modes; `listener` if nothing better is."""
        if self._push is not None:
            return self._push
        if self._hook is not None and self._hook.proven:
            return "hook"
        if self._channel is not None:
            return "channel"
        return "codex" if self._codex is not None else "listener"

    @property
    def proven(self) -> bool:
        """Whether `mode` has shown that it works here. Of the agent's own doing nothing can."""
        match self.mode:
            case "hook":
                return self._hook is not None and self._hook.proven
            case "codex":
                return self._codex is not None and self._codex.proven
            case "channel":
                return self._channel is not None and _has_channel()
        return False

    @property
    def shown(self) -> str:
        """What other peers are shown: a way that would be proven but is not is `poll`."""
        return "poll" if self.mode in ("hook", "codex") and not self.proven else self.mode

    @property
    def has_channel(self) -> bool:
        """Whether the channel's capability is to be declared: exactly when it is used."""
        return self._channel is not None and self.mode == "channel"

    def learn(self, meta: object) -> None:
        """Take from a tool call's `_meta` what proves a way."""
        if self._codex is not None:
            self._codex.learn(meta)

    async def announce(self, notice: Notice) -> None:
        """Tell the agent that messages wait.

        Raises:
            HoptellError: it could not be told; where that can change, `on_change` is called.
        """
        mode = self.mode
        if self._hook is not None and mode in ("hook", "listener"):
            await self._hook.announce(notice)
        elif mode == "hook":
            raise HoptellError("this session is to be woken by hook, but no Claude Code runs it")
        elif mode == "channel":
            if self._channel is None:
                raise HoptellError(_CHANNEL_TOO_LATE)
            await self._channel.announce(notice)
        elif mode == "codex" and self._codex is not None:
            await self._codex.announce(notice)

    def sentence(self) -> str:
        """How this session is woken and whether that is proven, as it is told itself."""
        match self.mode, self.proven:
            case "hook", True:
                return "You are woken by hook, proven: Claude Code's hook has connected."
            case "hook", _:
                return (
                    "You should be woken by hook, but that is not proven: no hook of Claude Code"
                    " has connected. Install hoptell's plugin, or the output of 'hoptell hooks'."
                )
            case "channel", True:
                return "You are woken by channel, proven: Claude Code was started with it."
            case "channel", _ if self._channel is None:
                return _CHANNEL_TOO_LATE
            case "channel", _:
                return (
                    "You should be woken by channel, but that is not proven: Claude Code was not"
                    " seen to be started with channels for hoptell."
                )
            case "codex", True:
                return "You are woken by codex, proven: your thread is known."
            case "codex", _:
                return self.hint() or (
                    "You should be woken by codex, but that is not proven: your thread is not"
                    " known."
                )
            case "tmux", _:
                return _sentence_on_tmux(self._home, self._name)
            case "poll", _:
                return "Nothing wakes you: call read_inbox now and then."
        return f"You are woken as long as this runs in the background: {self._listen_command}"

    def hint(self) -> str | None:
        """What to add to the next answer, if the way that was proven has stopped working."""
        if self._codex is None or not self._codex.stalled:
            return None
        return (
            "[hoptell: messages wait, and the notice that was queued for you did not wake you."
            " Call read_inbox. To hear of further messages while idle, keep this running in the"
            f" background of your shell tool: {self._listen_command}]"
        )


def _sentence_on_tmux(home: Path | None, name: str) -> str:
    """Whether `hoptell tmux` types for this peer, by what it says of itself in its status file.

    It is online for this session too: without it nothing arrives, however well we send.
    """
    runs, problem = False, None
    if home is not None:
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            status = json.loads((home / "tmux" / name / "status.json").read_bytes())
            problem = None if status.get("connected") else status.get("problem")
            # By its start time too: its pid may be a stranger's by now.
            injector = processes.parse(status["injector"])
            ended = status.get("ended_at") is not None
            runs = not ended and injector is not None and processes.is_alive(injector) is not False
    if not runs:
        return (
            "You should be woken by tmux, but no 'hoptell tmux' runs for you, so nothing reaches"
            f" you: have your user start this session with 'hoptell tmux {name} -- COMMAND', or"
            " without HOPTELL_PUSH."
        )
    if problem:
        return f"You are woken by tmux, but 'hoptell tmux' is not online: {problem}"
    return "You are woken by tmux: messages are typed into this terminal."


# What can be told from the processes around us. Not on Windows, where there is no hook either.


def _hook(home: Path | None, name: str, on_change: Callable[[], None]) -> "HookWake | None":
    if home is None or os.name != "posix" or not hasattr(socket, "AF_UNIX"):
        return None
    from hoptell.sidecar import claude, registry

    process = registry.claude_code()
    return None if process is None else claude.HookWake(home, process, name, on_change)


def _has_channel() -> bool:
    if os.name != "posix":
        return False
    from hoptell.sidecar import claude, registry

    process = registry.claude_code()
    if process is None:
        return False
    # Ours is what Claude Code passes on, with what its settings add.
    found = (registry.variable(process.pid, name) or os.environ.get(name) for name in NO_CHANNELS)
    if any(value and value.strip() for value in found):
        return False
    plugin = "CLAUDE_PLUGIN_ROOT" in os.environ
    return claude.has_channel(registry.arguments(process.pid), plugin=plugin)


def _is_codex() -> bool:
    return codex.process() is not None
