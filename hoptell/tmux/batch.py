"""Which waiting messages are typed together, and which are only announced. Pure.

A message is typed as the framed text that its reader is shown everywhere. One that is long, has
control characters, or could be taken for a prompt once it is on the screen is announced by a
fixed notice instead and stays in the inbox. Messages go in order: those before the first that
is not typed go together in one paste, as far as they fit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hoptell.frames import Message
from hoptell.sidecar.wake import Notice, Sender
from hoptell.tmux.screen import looks_like_prompt

MAX_TEXT_LENGTH = 8_000
"""Characters of a message that is typed; a longer one is announced."""
MAX_PASTE_LENGTH = 12_000
"""Characters in one paste, frames included: one message of the largest size always fits."""
MAX_MESSAGES = 20
HARMLESS_START = frozenset("[(<=-─┌╭━*·•")
"""What a paste may begin with: none of them means anything at the start of a prompt."""

Render = Callable[[Message], str]


@dataclass(frozen=True)
class Batch:
    """What goes into the prompt at once."""

    text: str
    count: int
    """So many messages, from the first, are dealt with by it."""
    notice: bool = False
    """They are only announced, and stay in the inbox."""


def choose(
    messages: Sequence[Message], *, render: Render, notice: bool, command: str
) -> Batch | None:
    """Make the next paste of the messages that wait, oldest first; None if none does.

    `notice` announces always; `command` reads the inbox from a shell.
    """
    texts: list[str] = []
    length = 0
    for message in [] if notice else messages[:MAX_MESSAGES]:
        text = render(message) if is_typeable(message) else ""
        if not text or not _is_pasteable(text):
            break
        if texts and length + len(text) > MAX_PASTE_LENGTH:
            break
        texts.append(text)
        length += len(text) + 2
    if texts:
        return Batch("\n\n".join(texts), len(texts))
    if messages:
        return Batch(announcement(messages, command), len(messages), notice=True)
    return None


def is_typeable(message: Message) -> bool:
    """Whether a message's own text may stand in a terminal."""
    text = message.text
    if len(text) > MAX_TEXT_LENGTH or looks_like_prompt(text):
        return False
    return not any(_is_control(character) for character in text)


def announcement(messages: Sequence[Message], command: str) -> str:
    """The fixed notice: who wrote and how to read it, in one line and no word of the messages."""
    senders = dict.fromkeys(Sender(message.sender, message.host) for message in messages)
    notice = Notice(len(messages), tuple(senders))
    return f"{notice} Without that tool run: {command}"


def _is_control(character: str) -> bool:
    return (character < " " and character not in "\t\n") or "\x7f" <= character <= "\x9f"


def _is_pasteable(text: str) -> bool:
    return text[0] in HARMLESS_START and len(text) <= MAX_PASTE_LENGTH
