"""Notices that something appeared in a folder, by the file system's events.

Who waits looks into the folder once the watch is armed, and after every pause that it names:
events can be lost, and where none can be had (limits exhausted) looking often replaces them.
A folder that is not there yet is awaited in the one around it, in the same way.
"""

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

LOOK_INTERVAL = 5.0
"""Seconds between looks while waiting for events: 0.002 % of a core."""
POLL_INTERVALS = (0.02, 0.25)
"""Seconds between looks where there are no events: at first, and after backing off (0.04 %)."""

_log = logging.getLogger(__name__)


class Watch:
    """Calls `arrived`, in a thread of its own, when a file, or the folder, appears."""

    def __init__(self, folder: Path, arrived: Callable[[], object]) -> None:
        self._folder = folder
        self._arrived = arrived
        self._watched: Path | None = None
        self._observer: Any = None

    def __enter__(self) -> Self:
        self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        self._disarm()

    def _disarm(self) -> None:
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()

    def _arm(self) -> None:
        """Watch the folder, or the one around it as long as there is none."""
        watched = self._folder if self._folder.is_dir() else self._folder.parent
        if watched != self._watched:
            self._disarm()
            self._observer = _observe(watched, self._arrived)
            self._watched = watched

    def pauses(self, timeout: float | None) -> Iterator[float]:
        """For how many seconds to wait for `arrived` before looking again, until the time is up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        poll_pause, longest = POLL_INTERVALS
        while True:
            self._arm()
            pause = LOOK_INTERVAL if self._observer is not None else poll_pause
            left = pause if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return
            yield min(pause, left)
            poll_pause = min(poll_pause * 1.5, longest)


def _observe(folder: Path, arrived: Callable[[], object]) -> Any:
    """Start watching; None where the system gives no events."""
    # Here, since it takes 25 ms that storing and claiming do not need.
    from watchdog.events import DirCreatedEvent, FileCreatedEvent, FileMovedEvent, FileSystemEvent
    from watchdog.events import FileSystemEventHandler as Handler
    from watchdog.observers import Observer
    from watchdog.observers.polling import PollingObserver

    class Arrivals(Handler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            arrived()

    if Observer is PollingObserver:
        return None
    observer = None
    try:
        observer = Observer()
        # Only these: looking into the folder is itself an event.
        events: list[type[FileSystemEvent]] = [FileCreatedEvent, FileMovedEvent, DirCreatedEvent]
        observer.schedule(Arrivals(), str(folder), event_filter=events)
        observer.start()
    except (OSError, RuntimeError) as error:  # inotify's limits; no more threads
        _log.info("no file system events for %s (%s): looking regularly instead", folder, error)
        if observer is not None:
            observer.stop()
        return None
    return observer
