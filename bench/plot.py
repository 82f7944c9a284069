"""The comparison as a picture: bars in groups, as an SVG that reads on light and dark pages."""

from dataclasses import dataclass
from html import escape

COLOURS = ("#2f7ed8", "#a9553f", "#d39a80", "#9aa0a6", "#6f7479", "#7b61a8")
WIDTH = 860
LABEL = 218
BAR = 15
GAP = 20
SCALE = 480
"""Pixels of a bar as long as that of the plain Node relay."""
LONGEST = 1.1


@dataclass(frozen=True)
class Bar:
    """One relay in one scenario."""

    name: str
    ratio: float
    """To the plain Node relay: less is better."""
    words: str
    """The absolute figure, beside the bar."""


def draw(groups: list[tuple[str, list[Bar]]], titles: dict[str, str], caption: str) -> str:
    """Draw groups of bars.

    Args:
        groups: a title and its bars.
        titles: what the legend calls each relay, in the order of the colours.
        caption: what ran and when.
    """
    colours = dict(zip(titles, COLOURS, strict=False))
    parts = _legend(titles, colours)
    top = 74
    for title, bars in groups:
        height = len(bars) * BAR
        parts.append(
            f'<text x="{LABEL - 12}" y="{top + height / 2 + 4:.0f}" text-anchor="end">'
            f"{escape(title)}</text>"
        )
        for bar in bars:
            parts.append(_bar(bar, colours[bar.name], top))
            top += BAR
        top += GAP
    parts.append(
        f'<line x1="{LABEL + SCALE}" y1="62" x2="{LABEL + SCALE}" y2="{top - GAP + 6}"'
        ' stroke="#8a8f94" stroke-dasharray="3 4"/>'
    )
    head, _, rest = caption.partition("; ")
    for line in (head, rest):
        parts.append(f'<text class="small" x="20" y="{top + 8}">{escape(line)}</text>')
        top += 16
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 8}"'
        f' role="img" aria-label="hoptell compared with relays on Node">\n{_STYLE}\n'
        f'<rect width="{WIDTH}" height="{top + 8}" rx="8" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


_STYLE = (
    "<style>text{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#24292f}"
    ".title{font-size:16px;font-weight:600}.small{font-size:11px;fill:#59636e}</style>"
)


def _legend(titles: dict[str, str], colours: dict[str, str]) -> list[str]:
    parts = [
        '<text class="title" x="20" y="28">What a relay costs, plain Node relay = 1'
        " (shorter is better)</text>"
    ]
    x = 20
    for name, title in titles.items():
        parts.append(f'<rect x="{x}" y="40" width="11" height="11" rx="2" fill="{colours[name]}"/>')
        parts.append(f'<text class="small" x="{x + 16}" y="50">{escape(title)}</text>')
        x += 44 + round(6.2 * len(title))
    return parts


def _bar(bar: Bar, colour: str, top: int) -> str:
    length = min(bar.ratio, LONGEST) * SCALE
    words = f"{bar.ratio:.2f}  ({bar.words})"
    inside = length > SCALE * 0.75
    x = LABEL + length - 6 if inside else LABEL + length + 6
    look = 'text-anchor="end" style="fill:#fff"' if inside else ""
    return (
        f'<rect x="{LABEL}" y="{top + 1}" width="{length:.1f}" height="{BAR - 2}" rx="2"'
        f' fill="{colour}"/><text class="small" x="{x:.1f}" y="{top + 12}" {look}>'
        f"{escape(words)}</text>"
    )
