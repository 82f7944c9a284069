"""What several commands share: kinds of option values, and an exit code."""

import re
from pathlib import Path
from typing import Any

import click

NOTHING_ARRIVED = 3
"""The exit code of commands that wait: nothing came in time."""


class FilePath(click.ParamType[Path]):
    """The path of a file. Empty, as from a variable that is not set, it is wrong usage: pathlib
    would take it for the current folder, and left out it would mean something else."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not str(value).strip():
            self.fail("the file's name is empty", param, ctx)
        return Path(value)


class Duration(click.ParamType[int]):
    """`30s`, `10m`, `2h`, `7d` or plain seconds, as whole seconds."""

    name = "duration"

    def __init__(self, lowest: int = 1, highest: int = 100 * 86_400) -> None:
        self.lowest, self.highest = lowest, highest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"([0-9]{1,9})([smhd]?)", str(value), re.ASCII)
        if match is None:
            self.fail(
                f"{value!r} is not a duration: use 30s, 10m, 2h, 7d or plain seconds", param, ctx
            )
        seconds = int(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]]
        if not self.lowest <= seconds <= self.highest:
            self.fail(
                f"{value!r} is not from {in_words(self.lowest)} to {in_words(self.highest)}",
                param,
                ctx,
            )
        return seconds


def in_words(seconds: int) -> str:
    """A duration as `Duration` reads it, in the largest unit that needs no fraction."""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
