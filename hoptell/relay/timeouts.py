"""What the core waits for, in the order in which it falls due.

A table of timers costs more than what it watches. But entries of one kind all wait equally
long, so in the order in which they were added they fall due, and a dict keeps that order: to
add or to drop one costs what it costs in a dict, and to find what is due costs no more than
there is due.
"""

from collections.abc import Callable
from math import inf
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Timeouts(dict[K, V]):
    """Entries that each fall due `lifetime` seconds after their start.

    `since` finds the start in an entry's value. An entry that starts anew is popped first, so
    that it goes to the end.
    """

    def __init__(self, lifetime: float, since: Callable[[V], float]) -> None:
        super().__init__()
        self._lifetime = lifetime
        self._since = since

    def due(self, now: float) -> list[K]:
        """The entries whose time has come, oldest first; they stay until they are popped."""
        due = []
        for entry, value in self.items():
            if self._since(value) + self._lifetime > now:
                break
            due.append(entry)
        return due

    def next_at(self) -> float:
        """When the first one falls due; infinity without any."""
        for value in self.values():
            return self._since(value) + self._lifetime
        return inf
