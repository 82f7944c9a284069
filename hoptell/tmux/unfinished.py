"""What is being typed, on disk, so that an injector that is killed loses and doubles nothing.

Between the paste and the moment in which the text was seen to be submitted a kill leaves three
things behind, and the next injector of the same agent puts them together:

    the claims         messages whose text may stand in the prompt. They are held for the agent, not
                       for the injector: nobody else reads them until the agent ends
    unfinished.json    which text it is. Written before the paste
    the pane's mark    how far it came. tmux sets it together with the keys (pane.py)

A note without its mark was not pasted: the messages go back to the inbox. A text that still
stands in the prompt gets its Enter. After Enter the prompt tells, as it always does. Only of a
text that was pasted, got no Enter from us and is gone nobody knows whether a person sent it:
its messages stay in the inbox, announced like those that are never typed.
"""

import contextlib
from pathlib import Path

import msgspec

from hoptell import files


class Unfinished(msgspec.Struct):
    """The content of unfinished.json."""

    paste: str
    """Which paste, in the pane's mark."""
    text: str
    pasted_at: float
    """On the monotonic clock, which goes on for as long as the agent can."""
    announcing: list[str] = []
    """Deliveries that the text only announces."""
    label: str | None = None
    """What the agent shows instead of the text, once it was seen."""


class UnfinishedFile:
    """unfinished.json in a session's folder."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "unfinished.json"

    def read(self) -> Unfinished | None:
        """What was begun; None if nothing that can be read was."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Unfinished)
        except (OSError, msgspec.DecodeError):
            return None

    def write(self, unfinished: Unfinished) -> None:
        """Replace it.

        Raises:
            OSError: the disk refuses; what was there is still there.
        """
        files.replace(self._file, msgspec.json.encode(unfinished))

    def remove(self) -> None:
        """Nothing is being typed any more."""
        with contextlib.suppress(OSError):
            self._file.unlink()
