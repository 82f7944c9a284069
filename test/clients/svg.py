"""A recording of terminals as one animated SVG: no scripts, no fonts, nothing fetched.

Every row of every terminal is a strip of all that it ever showed, moved sideways behind a
window by CSS; a row that did not change costs nothing, which keeps a minute of two agents under
200 KB. Where nothing moves (printed, or by the reader's own wish) it shows the end.

What terminals send is data here: text is escaped, and a sequence other than a colour is dropped.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from html import escape

FONT_SIZE = 14
CELL = 8.4
"""Width of a column: 0.6 em, as most fixed-width fonts have it; text is fitted to it."""
LINE = 18
MARGIN = 16
BAR = 34
"""Height of a terminal's title bar."""
FOOT = 64
HOLD = 6.0
"""Seconds that the last picture stays."""

BACKGROUND, PANEL, EDGE, FOREGROUND = "#0d1117", "#12171e", "#30363d", "#d6dde5"
BASIC = (
    "#484f58 #ff7b72 #3fb950 #d29922 #58a6ff #bc8cff #39c5cf #b1bac4"
    " #6e7681 #ffa198 #56d364 #e3b341 #79c0ff #d2a8ff #56d4dd #ffffff"
).split()
ESCAPE = re.compile(
    r"\x1b\[([0-9;:]*)m"  # a colour
    r"|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b."
)


@dataclass(frozen=True)
class Style:
    """How a piece of text looks; colours as `#rrggbb`, None for the terminal's own."""

    color: str | None = None
    background: str | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    struck: bool = False
    inverse: bool = False


Run = tuple[int, str, Style]
"""The column where it begins, its text, its look."""
Row = tuple[Run, ...]


@dataclass(frozen=True)
class Terminal:
    title: str
    columns: int
    rows: int


@dataclass(frozen=True)
class Recording:
    """What `terminals` showed: at each time (seconds, from 0) a screen of each, as
    `tmux capture-pane -e -p` gives it; and what to say below, from when on."""

    terminals: tuple[Terminal, ...]
    frames: tuple[tuple[float, tuple[str, ...]], ...]
    captions: tuple[tuple[float, str], ...]
    footnote: str

    @property
    def length(self) -> float:
        """Seconds, with the time that the last picture stays."""
        return self.frames[-1][0] + HOLD


# What a terminal shows --------------------------------------------------------------------------


def color_of(number: int) -> str:
    """One of the 256 colours."""
    if number < 16:
        return BASIC[number]
    if number >= 232:
        return "#" + f"{8 + 10 * (number - 232):02x}" * 3
    levels = (0, 95, 135, 175, 215, 255)
    cube = number - 16
    return "#" + "".join(f"{levels[cube // step % 6]:02x}" for step in (36, 6, 1))


def _extended(numbers: Iterator[int]) -> str | None:
    """What follows 38 or 48: a colour by number or by red, green and blue."""
    kind = next(numbers, 0)
    if kind == 5:
        return color_of(min(255, next(numbers, 0)))
    if kind == 2:
        return "#" + "".join(f"{min(255, next(numbers, 0)):02x}" for _ in range(3))
    return None


def restyled(style: Style, sequence: str) -> Style:
    """`style` after `ESC [ sequence m`; what is not known changes nothing."""
    flags = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "struck"}
    off = {23: "italic", 24: "underline", 27: "inverse", 29: "struck"}
    numbers = iter([int(word or 0) for word in re.split("[;:]", sequence)])
    for number in numbers:
        if number == 0:
            style = Style()
        elif number in flags:
            style = replace(style, **{flags[number]: True})
        elif number == 22:
            style = replace(style, bold=False, dim=False)
        elif number in off:
            style = replace(style, **{off[number]: False})
        elif number == 38:
            style = replace(style, color=_extended(numbers))
        elif number == 48:
            style = replace(style, background=_extended(numbers))
        elif number in (39, 49):
            style = replace(style, **{"color" if number == 39 else "background": None})
        elif 30 <= number <= 37 or 90 <= number <= 97:
            style = replace(style, color=BASIC[number % 10 + (8 if number >= 90 else 0)])
        elif 40 <= number <= 47 or 100 <= number <= 107:
            style = replace(style, background=BASIC[number % 10 + (8 if number >= 100 else 0)])
    return style


def cells(text: str) -> int:
    """How many columns a text takes."""
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def _printable(text: str) -> str:
    """Without what XML forbids, and with a space where text is only a gap."""
    text = text.replace("\xa0", " ")
    return "".join(one for one in text if one >= " " and not 0x7F <= ord(one) <= 0x9F)


def rows_of(screen: str, count: int) -> list[Row]:
    """A captured screen as `count` rows. Colours go on from one line into the next."""
    style, rows = Style(), []
    for line in screen.split("\n")[:count]:
        column, at, runs = 0, 0, []
        for match in [*ESCAPE.finditer(line), None]:
            text = _printable(line[at : match.start() if match else None])
            # Fonts lack some signs, and a substitute has another width: fit those by themselves.
            for piece in re.findall(r"[ -~]+|[^ -~]+", text):
                runs.append((column, piece, style))
                column += cells(piece)
            if match:
                at = match.end()
                if match[1] is not None:
                    style = restyled(style, match[1])
        rows.append(tuple(runs))
    return rows + [()] * (count - len(rows))


# Pictures ---------------------------------------------------------------------------------------


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _colors(style: Style) -> tuple[str, str | None]:
    """Of the text, and of what is behind it."""
    front, back = style.color or FOREGROUND, style.background
    return (back or BACKGROUND, front) if style.inverse else (front, back)


def _behind(row: Row, columns: int) -> str:
    """The backgrounds: neighbours of one colour in one piece, or there would be seams."""
    spans: list[list[int]] = []
    colors: list[str] = []
    for column, text, style in row:
        back, end = _colors(style)[1], column + cells(text)
        if back is None:
            continue
        if spans and spans[-1][1] == column and colors[-1] == back:
            spans[-1][1] = end
        else:
            spans.append([column, end])
            colors.append(back)
    # tmux forgets how far a row was erased in a colour: take it that it was to its end.
    if len(set(colors)) == 1 and spans[0] == [0, sum(cells(text) for _, text, _ in row)]:
        spans[0][1] = columns if row[0][2].background is not None else spans[0][1]
    return "".join(
        f'<path d="M{_number(start * CELL)} 0h{_number((end - start) * CELL)}v{LINE}H'
        f'{_number(start * CELL)}z" fill="{color}"/>'
        for (start, end), color in zip(spans, colors, strict=True)
    )


def _text(run: Run) -> str:
    column, text, style = run
    lines = [name for name in ("underline", "struck") if getattr(style, name)]
    inner = text if lines else text.strip(" ")
    if not inner:
        return ""
    column += 0 if lines else len(text) - len(text.lstrip(" "))
    front, _ = _colors(style)
    look = f' fill="{front}"' if front != FOREGROUND else ""
    classes = [name[0] for name in ("bold", "dim", "italic") if getattr(style, name)]
    classes += [name[0] for name in lines]
    look += f' class="{" ".join(classes)}"' if classes else ""
    if len(inner) > 1:
        look += f' textLength="{_number(cells(inner) * CELL)}"'
    return f'<text x="{_number(column * CELL)}" y="13"{look}>{escape(inner, quote=False)}</text>'


def drawn(row: Row, columns: int) -> str:
    """One row, from its upper left corner. Neighbours of one look are drawn as one."""
    joined: list[Run] = []
    for column, text, style in row:
        last = joined[-1] if joined else None
        plain = last is not None and last[1].isascii() and text.isascii()
        if last is not None and plain and last[2] == style:
            joined[-1] = (last[0], last[1] + text, style)
        else:
            joined.append((column, text, style))
    return _behind(row, columns) + "".join(map(_text, joined))


Strip = list[tuple[float, str]]
"""What one place shows, and from when on."""


def _strips(recording: Recording) -> list[list[Strip]]:
    """For each terminal the strip of each row."""
    strips: list[list[Strip]] = [[[] for _ in range(one.rows)] for one in recording.terminals]
    for at, screens in recording.frames:
        for terminal, screen, rows in zip(recording.terminals, screens, strips, strict=True):
            for row, strip in zip(rows_of(screen, terminal.rows), rows, strict=True):
                picture = drawn(row, terminal.columns)
                if not strip or strip[-1][1] != picture:
                    strip.append((at, picture))
    return strips


class _Picture:
    """The parts of an SVG: rows that are used twice are stored once."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.style: list[str] = []
        self._ids: dict[str, str] = {}
        self._moves: dict[str, str] = {}

    def definitions(self) -> str:
        return "".join(f'<g id="{name}">{row}</g>' for row, name in self._ids.items())

    def _use(self, content: str, x: float) -> str:
        if not content:
            return ""
        name = self._ids.setdefault(content, f"r{len(self._ids)}")
        return f'<use href="#{name}"' + (f' x="{_number(x)}"' if x else "") + "/>"

    def strip(self, strip: Strip, width: float, y: float, height: float) -> str:
        """A window on what this strip shows, at its time."""
        contents = list(dict.fromkeys(content for _, content in strip))
        step = width + MARGIN  # or the edge of the next would shine through
        if contents == [""]:
            return ""
        uses = "".join(self._use(one, number * step) for number, one in enumerate(contents))
        if len(contents) > 1:
            stops = [(at, contents.index(content) * step) for at, content in strip]
            uses = f'<g class="{self._move(stops)}">{uses}</g>'
        else:
            return f'<g transform="translate(0 {_number(y)})">{uses}</g>'
        return f'<svg y="{_number(y)}" width="{_number(width)}" height="{height}">{uses}</svg>'

    def _move(self, stops: list[tuple[float, float]]) -> str:
        """The class of what stands at these places from these times on."""
        length = self.recording.length

        def place(x: float) -> str:
            return f"transform:translate({_number(-x)}px)" if x else "transform:none"

        keys = "".join(f"{_number(100 * at / length)}%{{{place(x)}}}" for at, x in stops)
        if keys not in self._moves:
            name = self._moves[keys] = f"k{len(self._moves)}"
            self.style.append(f"@keyframes {name}{{{keys}}}")
            self.style.append(f".{name}{{{place(stops[-1][1])};animation-name:{name}}}")
        return self._moves[keys]


def animation(recording: Recording) -> str:
    """The whole recording, running for ever. The same recording gives the same text."""
    picture = _Picture(recording)
    seconds = _number(recording.length)
    x, bodies = float(MARGIN), []
    top = MARGIN + BAR
    height = max(one.rows for one in recording.terminals) * LINE + 2 * MARGIN
    for terminal, strips in zip(recording.terminals, _strips(recording), strict=True):
        width = terminal.columns * CELL
        rows = "".join(picture.strip(one, width, n * LINE, LINE) for n, one in enumerate(strips))
        outer = width + 2 * MARGIN
        bodies.append(
            f'<rect x="{_number(x)}" y="{MARGIN}" width="{_number(outer)}" height="{height + BAR}"'
            f' rx="8" fill="{PANEL}" stroke="{EDGE}"/>'
            f'<path d="M{_number(x)} {top}h{_number(outer)}" stroke="{EDGE}"/>'
            f'<text class="t" x="{_number(x + outer / 2)}" y="{MARGIN + 22}">'
            f"{escape(terminal.title, quote=False)}</text>"
            f'<svg x="{_number(x + MARGIN)}" y="{top + MARGIN}">{rows}</svg>'
        )
        x += outer + MARGIN
    below = top + height
    captions: Strip = [] if recording.captions[0][0] == 0 else [(0.0, "")]
    captions += [
        (at, f'<text class="c" x="{_number(x / 2)}" y="26">{escape(text, quote=False)}</text>')
        for at, text in recording.captions
    ]
    bodies.append(
        picture.strip(captions, x, below + 6, FOOT)
        + f'<text class="n" x="{_number(x / 2)}" y="{below + FOOT - 6}">'
        f"{escape(recording.footnote, quote=False)}</text>"
        f'<rect class="p" x="{MARGIN}" y="{below + FOOT + 4}" width="{_number(x - 2 * MARGIN)}"'
        ' height="3" fill="#58a6ff"/>'
    )
    title = " and ".join(one.title for one in recording.terminals)
    style = [
        f'text{{font:{FONT_SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",'
        f'"Liberation Mono",monospace;white-space:pre}}',
        ".b{font-weight:700}.d{opacity:.6}.i{font-style:italic}",
        ".u{text-decoration:underline}.s{text-decoration:line-through}",
        ".t,.c,.n{font-family:system-ui,sans-serif;text-anchor:middle}",
        ".t{font-weight:600}.c{font-size:20px}.n{font-size:13px;opacity:.65}",
        f"g[class^=k]{{animation-duration:{seconds}s;animation-timing-function:step-end;"
        "animation-iteration-count:infinite}",
        f".p{{transform-origin:{MARGIN}px 0;animation:p {seconds}s linear infinite}}",
        "@keyframes p{0%{transform:scaleX(0)}}",
        *picture.style,
        "@media(prefers-reduced-motion:reduce){*{animation:none!important}}",
    ]
    total = f"{_number(x)} {below + FOOT + 20}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total}"'
        f' width="{_number(x)}" height="{below + FOOT + 20}" fill="{FOREGROUND}" role="img">'
        f"<title>{escape(title, quote=False)}</title><style>{''.join(style)}</style>"
        f"<defs>{picture.definitions()}</defs>"
        f'<rect width="100%" height="100%" rx="10" fill="{BACKGROUND}"/>{"".join(bodies)}</svg>\n'
    )


def still(recording: Recording, at: float) -> str:
    """What the recording shows at one time, with nothing that moves."""
    shown = [screens for when, screens in recording.frames if when <= at]
    said = [(0.0, text) for when, text in recording.captions if when <= at]
    return animation(replace(recording, frames=((0.0, shown[-1]),), captions=tuple(said[-1:])))


def thinned(
    frames: Iterable[tuple[float, tuple[str, ...]]],
) -> Iterator[tuple[float, tuple[str, ...]]]:
    """Only the frames in which something changed, timed from the first one on; and the last."""
    first: float | None = None
    before: tuple[str, ...] | None = None
    last: tuple[float, tuple[str, ...]] | None = None
    for at, screens in frames:
        first = at if first is None else first
        last = (at - first, screens)
        if screens != before:
            yield last
            last = None
        before = screens
    if last is not None:
        yield last
