"""What an agent's screen says: may one type into it, or what speaks against it. Pure.

A wrong "yes" here answers an approval dialog or submits what a person was typing, so the rule
is recognition: only an input that is drawn the way this agent draws it, at the bottom of the
screen, with nothing in it and the cursor at its start, is `idle_empty`. Whatever is not
recognized is `unknown`, and nothing is typed. What an agent does not show at all (Codex, with a
title of its user's choice, not whether it works) makes it `unsure`.

Only the input and what stands below it count. A dialog takes the input's place in every agent
known here, so words that look like a question further up are what the agent printed, and hold
nothing back.

How each agent draws is in `AGENTS`; a new agent is a new line there.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple


class State(StrEnum):
    """What the agent is doing, as far as its screen tells."""

    IDLE_EMPTY = "idle_empty"
    IDLE_DRAFT = "idle_draft"
    BUSY = "busy"
    ASKING = "asking"
    UNKNOWN = "unknown"
    UNSURE = "unsure"


class Style(NamedTuple):
    """How a character is drawn; `color` is the foreground as in the escape, or ''."""

    bold: bool = False
    dim: bool = False
    reverse: bool = False
    color: str = ""


PLAIN = Style()


class Cell(NamedTuple):
    """One character of the screen."""

    char: str
    style: Style

    @property
    def blank(self) -> bool:
        return self.char.isspace()


Line = tuple[Cell, ...]


@dataclass(frozen=True)
class Screen:
    """One look at a pane."""

    rows: Sequence[str]
    """From top to bottom, as `tmux capture-pane -p -e` prints them."""
    cursor: tuple[int, int]
    """Column and row, from 0."""
    cursor_shown: bool = True
    width: int = 80
    title: str = ""
    dead: bool = False
    """It is what an agent left that has ended: tmux wrote into it, and put the cursor there."""
    title_tells: bool = False
    """The title had a spinner before: without one, this agent does not work."""

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """The rows as styled characters."""
        return tuple(_styled(self.rows))

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The rows as plain text, without white space at the end."""
        return tuple("".join(cell.char for cell in line).rstrip() for line in self.lines)


@dataclass(frozen=True)
class Reading:
    """What one look at the screen says."""

    state: State
    agent: str | None = None
    """Which agent's input was recognized; None if none was."""
    typed: str | None = None
    """What stands in the input, white space removed; None where no input is to be seen."""

    @property
    def empty(self) -> bool:
        """An input is there and nothing is typed in it, whether the agent is busy or not."""
        return self.typed == ""


@dataclass(frozen=True)
class Box:
    """An agent's input, found on a screen."""

    top: int
    bottom: int
    """First and last row that belong to it, borders included."""
    start: tuple[int, int]
    """Column and row of the cursor when nothing is typed."""
    content: tuple[Line, ...]
    """What stands in it, without glyph and borders."""
    muted: str | None = None
    """The colour that this agent draws a placeholder in, if it does so by colour."""
    normal: bool = True
    """False in a mode in which typed text means something else, such as a shell command."""


# Reading rows -----------------------------------------------------------------------------

_ESCAPES = re.compile(
    r"\x1b\[([0-9;:]*)m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\].*?(?:\x07|\x1b\\)|[\x0e\x0f]"
)


def _styled(rows: Iterable[str]) -> Iterable[Line]:
    # tmux carries a style on into the next row, without a reset at the end of each.
    style = PLAIN
    for row in rows:
        cells: list[Cell] = []
        position = 0
        for escape in _ESCAPES.finditer(row):
            cells += [Cell(char, style) for char in row[position : escape.start()]]
            position = escape.end()
            if escape[1] is not None:
                style = _restyled(style, escape[1])
        cells += [Cell(char, style) for char in row[position:]]
        yield tuple(cells)


def _restyled(style: Style, codes: str) -> Style:
    parts = iter(codes.replace(":", ";").split(";"))
    for code in parts:
        match code:
            case "" | "0":
                style = PLAIN
            case "1":
                style = style._replace(bold=True)
            case "2":
                style = style._replace(dim=True)
            case "22":
                style = style._replace(bold=False, dim=False)
            case "7":
                style = style._replace(reverse=True)
            case "27":
                style = style._replace(reverse=False)
            case "38" | "48" | "58":
                color = _extended_color(parts)
                style = style._replace(color=color) if code == "38" else style
            case "39":
                style = style._replace(color="")
            case _ if len(code) == 2 and code[0] in "39":
                style = style._replace(color=code)
    return style


def _extended_color(parts: "Iterable[str]") -> str:
    numbers = iter(parts)
    kind = next(numbers, "")
    count = {"5": 1, "2": 3}.get(kind, 0)
    return ";".join([kind, *(next(numbers, "") for _ in range(count))])


# Finding the input ------------------------------------------------------------------------

Finder = Callable[[Screen], Box | None]


def between_rules(glyph: str, *, modes: str = "", rules: str = "─━") -> Finder:
    """An input between two lines across the screen, its first row led by `glyph`."""

    def find(screen: Screen) -> Box | None:
        edges = [row for row, text in enumerate(screen.texts) if _is_rule(text, rules, screen)]
        for top, bottom in reversed(list(zip(edges, edges[1:], strict=False))):
            inner = screen.lines[top + 1 : bottom]
            lead = _lead(screen.texts[top + 1]) if inner else None
            if lead is not None and lead[1] in glyph + modes:
                column = lead[0] + 2
                content = tuple(line[column:] for line in inner)
                return Box(top, bottom, (column, top + 1), content, normal=lead[1] in glyph)
        return None

    return find


def in_frame(glyph: str) -> Finder:
    """An input in a frame with round or square corners: `│ > … │`."""

    def find(screen: Screen) -> Box | None:
        bottom = _last(screen.texts, re.compile(r"\s*[╰└][─━]{8,}[╯┘]$"))
        if bottom is None:
            return None
        top = bottom - 1
        while top >= 0 and re.match(r"\s*[│┃].*[│┃]$", screen.texts[top]):
            top -= 1
        if top < 0 or top == bottom - 1 or not re.match(r"\s*[╭┌][─━]", screen.texts[top]):
            return None
        side = len(screen.texts[top]) - len(screen.texts[top].lstrip())
        lead = re.match(rf"[│┃] *{re.escape(glyph)}(?: |[│┃])", screen.texts[top + 1][side:])
        if lead is None:
            return None
        column = side + lead.end()
        ends = (len(text) - 1 for text in screen.texts[top + 1 : bottom])
        lines = screen.lines[top + 1 : bottom]
        content = tuple(line[column:end] for line, end in zip(lines, ends, strict=True))
        return Box(top, bottom, (column, top + 1), content)

    return find


def led_by(glyph: str) -> Finder:
    """An input without borders: a line that starts with `glyph`, drawn at full strength."""

    def find(screen: Screen) -> Box | None:
        for row in reversed(range(len(screen.lines))):
            line, text = screen.lines[row], screen.texts[row]
            if re.match(rf"{glyph}(?:\s|$)", text) and not line[0].style.dim:
                if line[0].style.reverse:
                    return None  # the highlighted choice of a list
                # Nothing but the cursor tells a draft's blank line from the end of the input.
                bottom = max(row, screen.cursor[1] if screen.cursor_shown else row)
                while bottom + 1 < len(screen.texts) and screen.texts[bottom + 1]:
                    bottom += 1
                content = tuple(line[2:] for line in screen.lines[row : bottom + 1])
                return Box(row, bottom, (2, row), content)
        return None

    return find


def beside_bar() -> Finder:
    """An input beside a bar, `┃`, that ends in `╹▀▀▀`; its last row names agent and model."""

    def find(screen: Screen) -> Box | None:
        bottom = _last(screen.texts, re.compile(r"\s*╹▀{8,}$"))
        if bottom is None:
            return None
        side = screen.texts[bottom].index("╹")
        top = bottom
        while top > 0 and screen.texts[top - 1][side : side + 1] == "┃":
            top -= 1
        if bottom - top < 4:
            return None
        model = screen.lines[bottom - 1][side + 1 :]
        column = side + 3
        content = tuple(line[column:] for line in screen.lines[top + 1 : bottom - 1])
        named = "".join(cell.char for cell in model).strip()
        dot = next((cell.style.color for cell in model if cell.char == "·"), None)
        shell = named.lower().startswith("shell") or not named
        return Box(top, bottom, (column, top + 1), content, muted=dot, normal=not shell)

    return find


def _is_rule(text: str, characters: str, screen: Screen) -> bool:
    if len(text) < max(8, screen.width - 2) or text[0] not in characters:
        return False
    return text[-1] in characters and 2 * sum(char in characters for char in text) > len(text)


def _lead(text: str) -> tuple[int, str] | None:
    match = re.match(r"( ?)(\S)(?:\s|$)", text)
    return (len(match[1]), match[2]) if match else None


def _last(texts: Sequence[str], pattern: re.Pattern[str]) -> int | None:
    found = (row for row in reversed(range(len(texts))) if pattern.match(texts[row]))
    return next(found, None)


# The agents -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agent:
    """How one agent draws its screen."""

    name: str
    programs: re.Pattern[str]
    """The names of its program, as foreground.py finds them."""
    find: Finder
    """Its input, lowest on the screen; None if it is not to be seen."""
    busy_title: re.Pattern[str] | None = None
    idle_title: re.Pattern[str] | None = None
    """A title that it has only while idle: then `busy_above` is not looked for."""
    only_title_tells: bool = False
    """Its screen may look idle while it works."""
    busy_above: re.Pattern[str] | None = None
    """A line within NEAR rows above the input that stands there while it works."""
    busy_below: re.Pattern[str] | None = None
    """Words below the input while it works."""
    placeholders: re.Pattern[str] | None = None
    """Placeholders that are told by their words, where neither dim nor colour tells them."""
    below: re.Pattern[str] | None = None
    """How each row below its input begins; None if that is not known."""
    leaves_cursor: bool = False
    """It may hide the cursor and leave it outside its input."""


_INDENTED = re.compile(r"  ")
_SPINNER = re.compile(r"[\u2801-\u28ff] ")

AGENTS = (
    Agent(
        "claude",
        re.compile(r"claude"),
        between_rules("❯", modes="!#&"),
        busy_title=re.compile(r"[◐◓◑◒\u2801-\u28ff] "),
        idle_title=re.compile(r"✳ "),
        busy_above=re.compile(r"[·✢✳✶✻✽*+∗] \w[\w -]*…"),
        busy_below=re.compile(r"\besc to interrupt\b"),
        below=_INDENTED,
    ),
    Agent(
        "codex",
        re.compile(r"codex(?:-(?:x86_64|aarch64)-[\w-]+)?"),
        led_by("›"),
        busy_title=re.compile(r"[\u2801-\u28ff] |(?:Working|Thinking|Starting)\b"),
        idle_title=re.compile(r"Ready(?: \||$)"),
        only_title_tells=True,
        busy_above=re.compile(r"\W{0,3}\w.* \(.{2,20} • esc to interrupt\)"),
        below=_INDENTED,
    ),
    Agent(
        "opencode",
        re.compile(r"opencode"),
        beside_bar(),
        busy_below=re.compile(r"\besc (?:again )?(?:to )?interrupt\b"),
        below=_INDENTED,
    ),
    Agent(
        "gemini",
        re.compile(r"gemini(?:-cli)?"),
        in_frame(">"),
        busy_title=re.compile(r"[\u2801-\u28ff✦◐◓◑◒] "),
        busy_above=re.compile(r"\W{0,3}\w.* \(esc to (?:cancel|interrupt)\b"),
        busy_below=re.compile(r"\besc to (?:cancel|interrupt)\b"),
        placeholders=re.compile(r"Type your message(?: or @path/to/file)?$"),
        leaves_cursor=True,
    ),
    Agent(
        "antigravity",
        re.compile(r"agy|antigravity"),
        between_rules(">", modes="!#", rules="─━▀▄"),
        busy_title=re.compile(r"[\u2801-\u28ff✦◐◓◑◒] "),
        busy_above=re.compile(r"\W{0,3}\w.* \(esc to (?:cancel|interrupt)\b"),
        busy_below=re.compile(r"\besc to (?:cancel|interrupt)\b"),
        placeholders=re.compile(r"Type your message(?: or @path/to/file)?$"),
        leaves_cursor=True,
    ),
)

NEAR = 8
"""Rows above the input in which a working agent says so."""
FOOTER = 8
"""Rows with something in them that may stand below an input."""
BOTTOM = 20
"""Rows at the bottom in which a dialog is looked for where there is no input."""

_ASKING_TITLE = re.compile(r"\[ ?[!.] ?\] |.*\bAction Required\b")
_ASKING = re.compile(
    r"""
      ^\W{0,6}[❯›▶►●◉»>]\s*\d{1,2}[.)]\s              # the highlighted choice of a numbered list
    | ^\W{0,6}\d{1,2}[.)]\s+(?:yes|no|allow|deny|reject|approve|cancel|always)\b
    | ^\W{0,4}[yn]\)\s
    | \besc(?:ape)?\b[^·•|]{0,12}\bto\ (?:cancel|reject|deny|dismiss|decline|skip|exit)\b
    | \benter\b[^·•|]{0,12}\b(?:to\ )?(?:confirm|continue|select|approve|submit\ answer)\b
    | \b(?:do\ you\ (?:want|trust|wish)|would\ you\ like\ to|are\ you\ sure)\b
    | \b(?:permission|approval|action|confirmation)\ (?:is\ )?required\b
    | \brequires?\ (?:your\ )?(?:approval|permission|confirmation)\b
    | \ballow\ (?:once|always|execution|command|this)\b
    | \bwaiting\ for\ (?:user\ |your\ )?(?:confirmation|approval)\b
    | [\[(]y(?:es)?/n(?:o)?[\])]
    """,
    re.IGNORECASE | re.VERBOSE,
)


def read(screen: Screen) -> Reading:
    """Tell from one look what the agent is doing and what stands in its input."""
    found = _lowest_input(screen)
    if _ASKING_TITLE.match(screen.title):
        return Reading(State.ASKING)
    if found is None:
        asks = any(map(_ASKING.search, _bottom(screen.texts)))
        return Reading(State.ASKING if asks else State.UNKNOWN)
    agent, box = found
    below = [text for text in screen.texts[box.bottom + 1 :] if text]
    busy_below = agent.busy_below is not None and any(map(agent.busy_below.search, below))
    if not busy_below and any(map(_ASKING.search, below)):
        return Reading(State.ASKING)
    if len(below) > FOOTER or not (screen.dead or _belongs(agent, below)):
        return Reading(State.UNKNOWN)
    empty = _is_empty(agent, box, screen)
    typed = "" if empty else _squeezed(box.content) or "(white space)"
    if busy_below or _busy_elsewhere(agent, box, screen):
        return Reading(State.BUSY, agent.name, typed)
    if agent.only_title_tells and not (screen.title_tells or _is_idle_title(agent, screen.title)):
        return Reading(State.UNSURE, agent.name, typed)
    return Reading(State.IDLE_EMPTY if empty else State.IDLE_DRAFT, agent.name, typed)


def kind_of(names: Iterable[str]) -> str | None:
    """Which agent a program is that goes by these names; None if it is none known here."""
    found = (agent.name for agent in AGENTS if any(map(agent.programs.fullmatch, names)))
    return next(found, None)


def has_spinner(title: str) -> bool:
    """Tell whether a title shows a spinner, as most agents' do while they work."""
    return _SPINNER.match(title) is not None


def _belongs(agent: Agent, below: Sequence[str]) -> bool:
    return agent.below is None or all(map(agent.below.match, below))


def _is_idle_title(agent: Agent, title: str) -> bool:
    return agent.idle_title is not None and agent.idle_title.match(title) is not None


def _lowest_input(screen: Screen) -> tuple[Agent, Box] | None:
    found = [(agent, box) for agent in AGENTS if (box := agent.find(screen)) is not None]
    return max(found, key=lambda pair: pair[1].bottom, default=None)


def _bottom(texts: Sequence[str]) -> list[str]:
    return [text for text in texts if text][-BOTTOM:]


def _busy_elsewhere(agent: Agent, box: Box, screen: Screen) -> bool:
    if agent.busy_title is not None and agent.busy_title.match(screen.title):
        return True
    if agent.busy_above is None or _is_idle_title(agent, screen.title):
        return False
    above = screen.texts[max(0, box.top - NEAR) : box.top]
    return any(agent.busy_above.match(text.strip()) for text in above)


def _is_empty(agent: Agent, box: Box, screen: Screen) -> bool:
    return box.normal and _at_start(agent, box, screen) and _nothing_typed(agent, box)


def _at_start(agent: Agent, box: Box, screen: Screen) -> bool:
    # Of a draft of blanks only the cursor tells, hidden or not.
    column, row = screen.cursor
    if screen.dead:
        return True
    if agent.leaves_cursor and not screen.cursor_shown and not box.top <= row <= box.bottom:
        return True
    return (column, row) == box.start


def _nothing_typed(agent: Agent, box: Box) -> bool:
    cells = [cell for line in box.content for cell in line if not cell.blank]
    if not cells:
        return True
    if agent.placeholders is not None:
        first = "".join(cell.char for cell in box.content[0]).strip()
        if agent.placeholders.match(first) and not any(map(_squeezed_line, box.content[1:])):
            return True
    # Agents that draw the cursor themselves reverse the placeholder's first character.
    rest = cells[1:] if cells[0].style.reverse else cells
    return bool(rest) and all(_is_muted(cell, box) for cell in rest)


def _is_muted(cell: Cell, box: Box) -> bool:
    return cell.style.dim or (bool(box.muted) and cell.style.color == box.muted)


def _squeezed(lines: Iterable[Line]) -> str:
    return "".join(map(_squeezed_line, lines))


def _squeezed_line(line: Line) -> str:
    return "".join(cell.char for cell in line if not cell.blank)


# Our own text -----------------------------------------------------------------------------

_COLLAPSED = re.compile(r"(?:\[Pasted ?(?:text|Content|~)[^\]]*\])+", re.IGNORECASE)
RECOGNIZABLE = 30
"""Letters of a text that must be seen: a person's few words may be in it too."""
_LOOKS_LIKE_PROMPT = re.compile(
    r"\s*(?:[│┃]\s*)?[❯›>](?:\s|$)|\s*[─━▀▄╌]{8,}|\s*[╭┌╰└╹][─━▀]{3,}|.*\besc\b.{0,12}\binterrupt\b",
    re.IGNORECASE,
)


def shows(reading: Reading, text: str) -> bool:
    """Tell whether what stands in the input is `text`, or the visible part of it, or its label.

    Agents show a long paste as a label (`[Pasted text #1 +4 lines]`) and scroll what does not
    fit. Marks and symbols are left out of the comparison: terminals draw some of them in ways
    that do not read back.
    """
    if not reading.typed:
        return False
    if is_label(reading):
        return True
    seen, whole = _letters(reading.typed), _letters(text)
    return len(seen) >= min(len(whole), RECOGNIZABLE) and seen in whole


def is_label(reading: Reading) -> bool:
    """Tell whether in the input stands a label for some long paste, and nothing else."""
    return reading.typed is not None and _COLLAPSED.fullmatch(reading.typed) is not None


def looks_like_prompt(text: str) -> bool:
    """Tell whether `text`, drawn on the screen, could be taken for an input or a dialog."""
    return any(
        _ASKING.search(line) or _LOOKS_LIKE_PROMPT.match(line) or _COLLAPSED.search(line)
        for line in text.splitlines()
    )


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))
