"""Captured screens of real agents: test/tmux/screens/*.screen.

The first line has the cursor, whether it is shown, the width and the pane's title; then come
the rows as `tmux capture-pane -p -e` printed them. The agents had shown in their titles before
that they work.
"""

import re
from pathlib import Path

from hoptell.tmux.screen import Screen

FOLDER = Path(__file__).resolve().parent.parent / "tmux" / "screens"
_HEAD = re.compile(r"cursor=(\d+),(\d+) shown=(\d) width=(\d+) title=(.*)")


def load(name: str) -> Screen:
    """The screen captured under that name."""
    head, _, body = (FOLDER / f"{name}.screen").read_text(encoding="utf-8").partition("\n")
    match = _HEAD.fullmatch(head)
    assert match, head
    column, row, shown, width, title = match.groups()
    rows = body.removesuffix("\n").split("\n")
    cursor = int(column), int(row)
    return Screen(rows, cursor, shown == "1", int(width), title, title_tells=True)


def names() -> list[str]:
    """All captured screens."""
    return sorted(file.stem for file in FOLDER.glob("*.screen"))
