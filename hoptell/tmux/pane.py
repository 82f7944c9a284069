"""The agent's pane in tmux: look, paste, press Enter. Each is one tmux process, 2 to 4 ms.

Looking takes cursor, title, screen and clients in one command list, which tmux runs without
reading from the pane in between: they belong together. Typing is guarded inside tmux by
`if-shell -F` on the stamp of the look that it rests on. The text itself goes in by standard
input, so that no option, key name or format in it means anything, and out as one bracketed
paste; a text with anything but printable characters, tab and newline is refused.

With each key tmux notes, as an option of the pane and in the same command list, what it was
for (`Mark`). Whoever is killed meanwhile leaves behind either both or neither.
"""

import re
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

import libtmux
from libtmux.common import tmux_cmd
from libtmux.exc import TmuxCommandNotFound

from hoptell.tmux import foreground
from hoptell.tmux.foreground import Process
from hoptell.tmux.screen import Screen, State, has_spinner, kind_of, read
from hoptell.tmux.typist import Look

SETTLE_WAIT = 3.0
"""Seconds after an agent's prompt first stands there in which it may still drop keys, and in
which its MCP servers start; nothing on the screen shows it."""
STAMP = " ".join(
    f"#{{{name}}}"
    for name in (
        "pane_id pane_pid pane_dead pane_in_mode pane_input_off pane_synchronized"
        " alternate_on cursor_flag cursor_x cursor_y pane_width pane_height session_activity"
        " bracket_paste_flag =2:pane_title"
    ).split()
)
"""What must not have changed between the look and the typing: of the title the first character,
where agents show that they work. A dialog or a draft moves the cursor, and a key that a person
pressed counts as activity of the session before the agent has drawn what it does. An old tmux
has nothing to say about bracketed paste."""

MARK = "@hoptell-typed"
"""The pane's option that holds the last mark."""

_SAFE = re.compile(r"(?:[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]|[\t\n])*")


class Tmux(libtmux.Server):
    """libtmux's server, spoken to in UTF-8 whatever the locale (`tmux -u`)."""

    def cmd(self, cmd: str, *args: Any, target: str | int | None = None) -> tmux_cmd:
        """Run one tmux command, or several with `;` as an argument of its own between them."""
        words = [*self.words(), cmd, *([] if target is None else ["-t", target]), *args]
        return tmux_cmd(*words[1:], tmux_bin=str(words[0]))

    def words(self) -> list[str]:
        """The command line up to the tmux command."""
        socket = [f"-L{self.socket_name}"] if self.socket_name else []
        socket += [f"-S{self.socket_path}"] if self.socket_path else []
        config = [f"-f{self.config_file}"] if self.config_file else []
        return [str(self.tmux_bin or "tmux"), "-u", *socket, *config]


class NoAnswer(Exception):
    """tmux did nothing: the pane or the whole server is no more, or tmux cannot be run now."""


class Mark(NamedTuple):
    """What was done last in a pane."""

    done: str
    """`pasted` or `entered`; empty if nothing was."""
    paste: str
    """Which paste it was about: hexadecimal digits of the caller's choice."""


class _Running(NamedTuple):
    """What is in the foreground of a pane."""

    process: Process | None
    """The agent; if there is none, what else there is but shells."""
    kind: str | None
    """Which agent it is; None if it is none."""


@dataclass
class Pane:
    """The pane `id` (`%5`) in which tmux started process `pid`, and nothing else.

    The agent in it is a process whose program has an agent's name, or whatever runs there if the
    user said of which `kind` it is.
    """

    tmux: Tmux
    id: str
    pid: int
    kind: str | None = None
    agent: Process | None = None
    """The agent, once its screen was recognized."""
    _process: Process | None = field(default=None, init=False)
    _recognized_at: float = field(default=float("-inf"), init=False)
    _title_tells: bool = field(default=False, init=False)
    _activity: tuple[int, float] = field(default=(0, 0.0), init=False)
    """The last activity of a person that tmux told, and when it told that first."""

    def __post_init__(self) -> None:
        self._process = foreground.find(self.pid)

    def look(self) -> Look:
        """See what the pane shows now.

        Raises:
            NoAnswer: there is no such pane any more, or no tmux to ask.
        """
        running = self._running()
        lines = self._ask(
            "display-message", "-p", "-t", self.id, STAMP,
            ";", "display-message", "-p", "-t", self.id, "#{window_id} #{pane_mode}",
            ";", "display-message", "-p", "-t", self.id, "#{pane_title}",
            ";", "list-clients", "-F", "#{client_activity} #{window_id}",
            ";", "display-message", "-p", "end",
            ";", "capture-pane", "-p", "-e", "-t", self.id,
        )  # fmt: skip
        return self._understood(lines, running)

    def _running(self) -> _Running:
        other = None
        for process in foreground.in_front(self.pid):
            if process.is_shell:
                continue
            kind = kind_of(process.names)
            if kind is None and not process.is_carrier:
                kind = self.kind
            if kind is not None:
                return _Running(process, kind)
            other = other or process
        return _Running(other, None)

    def _ask(self, command: str, *words: str) -> list[str]:
        try:
            answer = self.tmux.cmd(command, *words)
        except (OSError, TmuxCommandNotFound) as error:
            raise NoAnswer(str(error) or "there is no tmux now") from None
        if answer.returncode:
            raise NoAnswer(" ".join(answer.stderr))
        return answer.stdout

    def _understood(self, lines: list[str], running: _Running) -> Look:
        stamp, (window, _, mode), title = lines[0], lines[1].partition(" "), lines[2]
        end = lines.index("end", 3)
        values = dict(zip(STAMP[2:-1].split("} #{"), stamp.split(" ", 14), strict=True))
        screen = Screen(
            rows=lines[end + 1 :],
            cursor=(int(values["cursor_x"]), int(values["cursor_y"])),
            cursor_shown=values["cursor_flag"] == "1",
            width=int(values["pane_width"]),
            title=title,
            dead=values["pane_dead"] == "1",
            title_tells=self._title_tells,
        )
        reading = read(screen)
        problem = self._problem(values, mode, running)
        if problem is None and reading.agent not in (None, running.kind):
            problem = f"{running.kind} is in the foreground, and the screen looks like"
            problem += f" {reading.agent}'s"
        self._title_tells |= problem is None and has_spinner(title)
        if problem is None and reading.state is not State.UNKNOWN and self.agent is None:
            self.agent, self._recognized_at = running.process, time.monotonic()
        if problem is None and time.monotonic() - self._recognized_at < SETTLE_WAIT:
            problem = "the agent has only just started"
        return Look(stamp, reading, problem, self._person_at(lines[3:end], window))

    def _problem(self, values: dict[str, str], mode: str, running: _Running) -> str | None:
        if values["pane_id"] != self.id or values["pane_pid"] != str(self.pid):
            return "the pane runs another process"
        if values["pane_dead"] == "1":
            return "no agent is running in the pane"
        if values["pane_in_mode"] not in ("", "0"):
            return f"the pane is in {mode or 'a tmux mode'}"
        if values["pane_input_off"] == "1":
            return "the pane's input is switched off (select-pane -d)"
        if values["pane_synchronized"] == "1":
            return "the window's panes are synchronized: every pane would get the text"
        return self._problem_of(running) or (
            "the agent has not switched bracketed paste on"
            if values["bracket_paste_flag"] == "0"
            else None
        )

    def _problem_of(self, running: _Running) -> str | None:
        process = running.process
        if self.agent is not None and not _same(self.agent, process):
            return "another program is in the foreground of the pane"
        if process is None:
            return "no agent is running in the pane"
        if running.kind is None and process.is_carrier:
            return f"it runs {process.name}: hoptell cannot see what is in the foreground there"
        if running.kind is None:
            return f"{process.name} is no known agent (see hoptell tmux --help)"
        return "the agent is suspended" if process.suspended else None

    def _person_at(self, clients: list[str], window: str) -> float:
        """When somebody last typed at a client that shows `window`, on the monotonic clock."""
        seen = (line.split(" ") for line in clients)
        typed = [int(at) for at, shown in seen if shown == window and at.isdigit()]
        if not typed:
            return float("-inf")
        now, latest = time.monotonic(), max(typed)
        if latest != self._activity[0]:
            self._activity = latest, now
        # tmux tells whole seconds of the system's clock: take the last moment that they may
        # mean, but not one after they were first told, as somebody may have set the clock.
        return min(now - (time.time() - latest), self._activity[1]) + 1

    def paste(self, text: str, stamp: str, paste: str) -> bool:
        """Paste `text` if the pane still is as `stamp` says; tell whether it was done.

        Raises:
            NoAnswer: there is no such pane any more, or no tmux to ask.
            ValueError: the text is not printable; nothing was done.
        """
        if _SAFE.fullmatch(text) is None:
            raise ValueError("only printable text, tab and newline may be pasted")
        buffer = f"hoptell-{paste}"
        load = ["load-buffer", "-b", buffer, "-", ";"]
        keys = f"paste-buffer -p -r -d -b {buffer} -t {self.id}"
        # A file, not a pipe: tmux would paste what came through before its writer was killed.
        with _as_file(text) as file:
            guarded = self._guarded(
                stamp, keys, Mark("pasted", paste), f"delete-buffer -b {buffer}"
            )
            return self._typed([*load, *guarded], file.fileno())

    def enter(self, stamp: str, paste: str) -> bool:
        """Press Enter if the pane still is as `stamp` says; tell whether it was done.

        Raises:
            NoAnswer: there is no such pane any more, or no tmux to ask.
        """
        keys = f"send-keys -t {self.id} Enter"
        return self._typed(self._guarded(stamp, keys, Mark("entered", paste)))

    def mark(self) -> Mark:
        """What was typed last, by whichever injector.

        Raises:
            NoAnswer: there is no such pane any more, or no tmux to ask.
        """
        found = self._ask("display-message", "-p", "-t", self.id, f"#{{{MARK}}}")
        done, _, paste = "".join(found).partition("-")
        return Mark(done, paste)

    def _guarded(self, stamp: str, keys: str, mark: Mark, otherwise: str = "") -> list[str]:
        expected = re.sub(r"([#,}])", r"#\1", stamp)
        note = f"set-option -p -t {self.id} {MARK} {mark.done}-{mark.paste}"
        return [
            "if-shell", "-F", "-t", self.id, f"#{{==:{STAMP},{expected}}}",
            f"{keys} ; {note} ; display-message -p done",
            f"{otherwise} ; display-message -p held" if otherwise else "display-message -p held",
        ]  # fmt: skip

    def _typed(self, words: list[str], stdin: int = subprocess.DEVNULL) -> bool:
        command = [*self.tmux.words(), *words]
        try:
            answer = subprocess.run(command, stdin=stdin, capture_output=True, check=False)
        except OSError as error:
            raise NoAnswer(str(error)) from None
        if answer.returncode:
            raise NoAnswer(answer.stderr.decode(errors="replace").strip())
        return answer.stdout.decode().split()[-1:] == ["done"]

    def let_go(self) -> None:
        """From now on it is an ordinary pane: it closes as soon as what it runs has ended."""
        same = f"#{{==:#{{pane_pid}},{self.pid}}}"
        ended = foreground.find(self.pid) is None
        keep = f"set-option -p -t {self.id} remain-on-exit off"
        then = f"kill-pane -t {self.id}" if ended else keep
        self.tmux.cmd("if-shell", "-F", "-t", self.id, same, then)

    def exit_status(self) -> int | None:
        """The exit status of the process that tmux started, where tmux still knows it."""
        for _ in range(20):
            found = self.tmux.cmd("display-message", "-p", "-t", self.id, "#{pane_dead_status}")
            status = (found.stdout or [""])[0]
            if found.returncode or status:
                return int(status) if status.isdigit() else None
            # tmux 3.3a overlooks the end of a child now and then (6 in 100 that end at once,
            # measured) until another child of its ends: give it one.
            self.tmux.cmd("run-shell", "true")
            time.sleep(0.05)
        return None  # a signal ended it

    def last_words(self, rows: int = 8) -> list[str]:
        """What its program left in its last rows that are not empty."""
        lines = self.tmux.cmd("capture-pane", "-p", "-S", "-20", "-t", self.id).stdout
        said = (line for line in lines if line.strip() and not line.startswith("Pane is dead"))
        return list(said)[-rows:]

    def exists(self) -> bool:
        """Whether tmux still has it."""
        try:
            found = self._ask("display-message", "-p", "-t", self.id, "#{pane_id} #{pane_pid}")
        except NoAnswer:
            return False
        return found == [f"{self.id} {self.pid}"]

    def alive(self) -> bool:
        """Whether what was started is still there: the process, and the agent if it is known."""
        if self._process is None or not self._process.alive():
            return False
        return self.agent is None or self.agent.alive()


def _same(one: Process, other: Process | None) -> bool:
    return other is not None and (one.pid, one.started) == (other.pid, other.started)


def _as_file(text: str) -> IO[bytes]:
    try:
        file = tempfile.TemporaryFile()
        file.write(text.encode())
        file.seek(0)
    except OSError as error:
        raise NoAnswer(f"no temporary file: {error.strerror}") from None
    return file
