"""A terminal agent for tests: draws like a real one, and logs what was done to it.

    fake_agent.py --style claude --log FILE --control FIFO [--digest S] [--swallow N] …

What no sender of keys can know is what an agent is just about to draw: with --grace S it drops
the keys of the first S seconds of a dialog, and takes Enter in those of some work for no fault.

It runs in raw mode on the alternate screen with bracketed paste, as real agents do. Lines
written to the FIFO tell it what to do next:

    busy | idle             work on something, and stop
    ask | close             open an approval dialog, and close it unanswered
    draft TEXT              a person types TEXT into the prompt (empty: and removes it)
    say TEXT                print TEXT above the prompt
    ask-after-paste S       open a dialog S seconds after the next paste
    ask-after-enter         open a dialog at once when the next prompt is submitted
    ask-for S               open a dialog that closes by itself after S seconds
    exit                    end, as after /quit

The log has one JSON object a line: submit (text, lines), approve (key), dialog_key, submit_draft,
control (bytes other than text that arrived), ready.
"""

import argparse
import json
import os
import re
import select
import signal
import sys
import termios
import time
import tty
import unicodedata
from typing import Any

RULE = "─"
DIM, BOLD, REVERSE, RESET = "\x1b[2m", "\x1b[1m", "\x1b[7m", "\x1b[0m"
PASTE_START, PASTE_END = b"\x1b[200~", b"\x1b[201~"


def cells(text: str) -> int:
    """How many columns it takes."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def padded(text: str, columns: int) -> str:
    return text + " " * max(0, columns - cells(text))


def wrapped(line: str, columns: int) -> list[str]:
    rows, used = [""], 0
    for character in line:
        used += cells(character)
        if used > columns:
            rows, used = [*rows, ""], cells(character)
        rows[-1] += character
    return rows


class FakeAgent:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.log_file = open(options.log, "a", buffering=1)  # noqa: SIM115
        self.text = ""
        self.human = ""
        self.pasted_length = 0
        self.busy_since = 0.0
        self.busy_until = 0.0
        self._asking = False
        self.asked_at = 0.0
        self.ask_closes_at = float("inf")
        self.ask_opens_at = float("inf")
        self.ask_after_paste: float | None = None
        self.ask_after_enter = False
        self.digests_until = 0.0
        self.pending: bytes = b""
        self.said: list[str] = []
        self.swallow = options.swallow
        self.answered = False
        self.ended = False
        self.drawn = ""

    def log(self, event: str, **fields: Any) -> None:
        self.log_file.write(json.dumps({"event": event, "at": time.time(), **fields}) + "\n")

    @property
    def asking(self) -> bool:
        return self._asking

    @asking.setter
    def asking(self, asking: bool) -> None:
        if asking and not self._asking:
            self.asked_at = time.monotonic()
        self._asking = asking

    # What comes in ------------------------------------------------------------------------

    def keys(self, data: bytes) -> None:
        data = self.pending + data
        self.pending = b""
        while data:
            if data.startswith(PASTE_START):
                end = data.find(PASTE_END)
                if end < 0:
                    self.pending = data
                    return
                self.paste(data[len(PASTE_START) : end].decode())
                data = data[end + len(PASTE_END) :]
            elif PASTE_START.startswith(data[: len(PASTE_START)]):
                self.pending = data
                return
            else:
                next_paste = data.find(PASTE_START, 1)
                chunk = data if next_paste < 0 else data[:next_paste]
                data = b"" if next_paste < 0 else data[next_paste:]
                for character in chunk.decode(errors="replace"):
                    self.key(character)

    def paste(self, text: str) -> None:
        if found := re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text):
            self.log("control", characters=found)
        if self.asking:
            if time.monotonic() >= self.asked_at + self.options.grace:
                self.log("dialog_key", key=text)
            return
        self.text += text
        self.pasted_length += len(text)
        if len(text) >= self.options.digest_from:
            self.digests_until = time.monotonic() + self.options.digest
        if self.ask_after_paste is not None:
            self.ask_opens_at = time.monotonic() + self.ask_after_paste
            self.ask_after_paste = None

    def key(self, character: str) -> None:
        if self.asking and time.monotonic() < self.asked_at + self.options.grace:
            return  # pressed before anybody could see the dialog
        if self.asking:
            if character in "\r\ny1":
                self.log("approve", key=character)
                self.asking = False
            else:
                self.log("dialog_key", key=character)
        elif character in "\r\n":
            self.enter()
        elif character == "\x7f":
            self.text = self.text[:-1]
        elif character >= " " or character == "\t":
            self.text += character
        else:
            self.log("control", characters=[character])

    def enter(self) -> None:
        if time.monotonic() < self.digests_until:
            return
        if self.swallow:
            self.swallow -= 1
            return
        if not self.text:
            return
        event = "submit_draft" if self.human else "submit"
        seen_busy = self.is_busy and time.monotonic() > self.busy_since + self.options.grace
        self.log(event, text=self.text, busy=seen_busy)
        if self.text.startswith(("!", "/", "@", "#")):
            self.log("command", text=self.text)
        self.text, self.human, self.pasted_length = "", "", 0
        if self.options.slow_clear:
            time.sleep(self.options.slow_clear)
        self.answered = True
        self.asking, self.ask_after_enter = self.ask_after_enter, False
        self.busy_until = time.monotonic() + self.options.work

    def command(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        now = time.monotonic()
        match word:
            case "busy":
                self.busy_since = now
                self.busy_until = now + float(rest or 1e9)
            case "idle":
                self.busy_until = 0
            case "ask":
                self.asking, self.ask_closes_at = True, float("inf")
            case "ask-for":
                self.asking, self.ask_closes_at = True, now + float(rest)
            case "close":
                self.asking = False
            case "ask-after-paste":
                self.ask_after_paste = float(rest)
            case "ask-after-enter":
                self.ask_after_enter = True
            case "draft":
                if not rest:
                    self.text = self.text.removeprefix(self.human)
                if not rest or not self.text:
                    self.text += rest
                    self.human = rest
            case "say":
                self.said.append(rest)
            case "exit":
                self.ended = True

    # What goes out ------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        return time.monotonic() < self.busy_until

    def shown_text(self, columns: int) -> list[str]:
        """The input's rows: wrapped, or a label for what is long."""
        style, text = self.options.style, self.text
        lines = text.count("\n")
        if style == "claude" and (lines >= 3 or self.pasted_length >= 800):
            return [f"{self.human}[Pasted text #1 +{lines} lines]"]
        if style == "codex" and self.pasted_length > 1000:
            return [f"{self.human}[Pasted Content {self.pasted_length} chars]"]
        if style == "opencode" and lines >= 2:
            return [f"{self.human}[Pasted ~{lines + 1} lines]"]
        rows: list[str] = []
        for line in text.replace("\t", "    ").split("\n"):
            rows += wrapped(line, columns)
        return rows[-10:]

    def screen(self, columns: int, height: int) -> tuple[list[str], tuple[int, int], str]:
        """Rows, cursor and title."""
        bottom, cursor, title = getattr(self, f"draw_{self.options.style}")(columns)
        above = [""] + [f"● {line}"[:columns] for line in self.said]
        rows = (above + [""] * height)[: max(0, height - len(bottom))]
        if len(above) > len(rows):
            rows = above[len(above) - len(rows) :]
        return rows + bottom, (cursor[0], cursor[1] + len(rows)), title

    def draw_claude(self, columns: int) -> tuple[list[str], tuple[int, int], str]:
        if self.asking:
            rows = [
                RULE * columns, f" {BOLD}Bash command{RESET}", "", " touch /tmp/approved", "",
                " Do you want to proceed?", " ❯ 1. Yes", "   2. Yes, and don't ask again",
                "   3. No", "", " Esc to cancel · Tab to amend",
            ]  # fmt: skip
            return rows, (1, 6), "✳ Fake"
        shown = self.shown_text(columns - 4)
        rows = [f"❯\xa0{shown[0]}", *(f"  {line}" for line in shown[1:])]
        busy = " · esc to interrupt" if self.is_busy else ""
        rows = [RULE * columns, *rows, RULE * columns, f"  ⏸ manual mode on{busy}"]
        cursor = (2 + cells(shown[-1]), len(shown))
        if self.is_busy:
            rows = [f"{BOLD}✶{RESET} Perusing… (1s)", "", *rows]
            cursor = (cursor[0], cursor[1] + 2)
        return rows, cursor, "◐ Fake" if self.is_busy else "✳ Fake"

    def draw_codex(self, columns: int) -> tuple[list[str], tuple[int, int], str]:
        if self.asking:
            rows = [
                f"  {BOLD}Would you like to run the following command?{RESET}", "",
                "  $ touch /tmp/approved", "", f"{BOLD}{REVERSE}› 1. Yes, proceed (y){RESET}",
                "  2. No, and tell Codex what to do differently (esc)", "",
                f"  {DIM}Press enter to confirm or esc to cancel{RESET}",
            ]  # fmt: skip
            return rows, (columns - 1, 7), "[ ! ] Action Required | fake"
        shown = self.shown_text(columns - 4)
        first = shown[0] if self.text else f"{DIM}Ask Codex to do anything{RESET}"
        rows = [f"{BOLD}›{RESET} {first}", *(f"  {line}" for line in shown[1:])]
        rows += ["", "  mock-model default · ~/project"]
        if self.options.own_title:
            title = "⠧ fake" if self.is_busy else "fake"
        else:
            title = "⠧ Working | fake" if self.is_busy else "Ready | fake"
        return rows, (2 + cells(shown[-1]) if self.text else 2, len(shown) - 1), title

    def draw_opencode(self, columns: int) -> tuple[list[str], tuple[int, int], str]:
        if self.asking:
            rows = [
                "  ┃  △ Permission required", "  ┃    $ touch /tmp/approved", "  ┃",
                "  ┃   Allow once   Allow always   Reject     ⇆ select  enter confirm",
            ]  # fmt: skip
            return rows, (columns - 2, 3), "OC | fake"
        shown = self.shown_text(columns - 8)
        muted = "\x1b[38;5;8m"
        first = shown[0] if self.text else f'{muted}Ask anything… "Fix a TODO"{RESET}'
        rows = ["  ┃", f"  ┃  {first}", *(f"  ┃  {line}" for line in shown[1:]), "  ┃"]
        rows += [f"  ┃  Build {muted}·{RESET} Mock Model", "  ╹" + "▀" * (columns - 4)]
        rows += ["   ■■■  esc interrupt" if self.is_busy else "   ctrl+p commands"]
        return rows, (5 + (cells(shown[-1]) if self.text else 0), len(shown)), "OC | fake"

    def draw_gemini(self, columns: int) -> tuple[list[str], tuple[int, int], str]:
        inner = columns - 2
        if self.asking:
            lines = ["? Shell touch /tmp/approved", "Allow execution of: 'touch'?", ""]
            lines += ["● 1. Yes, allow once", "  2. No, suggest changes (esc)"]
            body = [f"│ {padded(line, inner - 2)} │" for line in lines]
            return ["╭" + RULE * inner + "╮", *body, "╰" + RULE * inner + "╯"], (1, 4), "fake"
        shown = self.shown_text(columns - 8)
        placeholder = "Type your message or @path/to/file"
        first = f"> {shown[0]}" if self.text else f"> {placeholder}"
        body = [first, *(f"  {line}" for line in shown[1:])]
        rows = [f"│ {padded(line, inner - 2)} │" for line in body]
        busy = ["⠏ Thinking... (esc to cancel, 1s)", ""] if self.is_busy else []
        rows = [*busy, "╭" + RULE * inner + "╮", *rows, "╰" + RULE * inner + "╯", " ~/project"]
        column = 4 + (cells(shown[-1]) if self.text else 0)
        return rows, (column, len(busy) + len(shown)), "fake"

    def draw(self) -> None:
        columns, height = os.get_terminal_size(1)
        rows, (x, y), title = self.screen(columns, height)
        title = title if self.options.title is None else self.options.title
        body = "".join(f"\x1b[{row + 1};1H\x1b[2K{text}" for row, text in enumerate(rows))
        out = f"\x1b]2;{title}\x07{body}\x1b[{y + 1};{x + 1}H"
        if out != self.drawn:
            os.write(1, out.encode())
            self.drawn = out

    def run(self) -> None:
        control = os.open(self.options.control, os.O_RDWR | os.O_NONBLOCK)
        before = termios.tcgetattr(0)
        tty.setraw(0)
        os.write(1, b"\x1b[?1049h\x1b[?2004h\x1b[2J")
        self.draw()
        self.log("ready", pid=os.getpid(), environ=dict(os.environ), argv=sys.argv)
        unread, commands = b"", b""
        read_at = float("inf")
        try:
            while not self.ended:
                ready, _, _ = select.select([0, control], [], [], self.pause(read_at))
                if 0 in ready:
                    unread += os.read(0, 65536)
                    read_at = min(read_at, time.monotonic() + self.options.slow_draw)
                if time.monotonic() >= read_at:
                    self.keys(unread)
                    unread, read_at = b"", float("inf")
                if control in ready:
                    *lines, commands = (commands + os.read(control, 65536)).split(b"\n")
                    for line in lines:
                        self.command(line.decode())
                now = time.monotonic()
                if now >= self.ask_opens_at:
                    self.asking, self.ask_opens_at = True, float("inf")
                if now >= self.ask_closes_at:
                    self.asking, self.ask_closes_at = False, float("inf")
                self.draw()
                if self.answered and self.options.last == "crash":
                    os.kill(os.getpid(), signal.SIGKILL)
                self.ended |= self.answered and self.options.last == "exit"
        finally:
            os.write(1, b"\x1b[?2004l\x1b[?1049l")
            termios.tcsetattr(0, termios.TCSANOW, before)

    def pause(self, read_at: float) -> float:
        """Seconds until something is due by itself."""
        due = [read_at, self.ask_opens_at, self.ask_closes_at]
        due += [self.busy_until] if self.is_busy else []
        return min(1.0, max(0.0, min(due) - time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--style", default="claude")
    parser.add_argument("--log", required=True)
    parser.add_argument("--control", required=True)
    parser.add_argument("--title")
    parser.add_argument("--own-title", type=int, help="as Codex has it unless told otherwise")
    parser.add_argument("--work", type=float, default=0.0)
    parser.add_argument("--slow-draw", type=float, default=0.0)
    parser.add_argument("--slow-clear", type=float, default=0.0)
    parser.add_argument("--digest", type=float, default=0.0)
    parser.add_argument("--digest-from", type=int, default=1)
    parser.add_argument("--grace", type=float, default=0.0)
    parser.add_argument("--last", choices=["crash", "exit"], help="how the first prompt ends it")
    parser.add_argument("--swallow", type=int, default=0)
    FakeAgent(parser.parse_args()).run()


if __name__ == "__main__":
    main()
