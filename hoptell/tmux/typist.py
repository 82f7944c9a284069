"""Whether to paste, press Enter, wait or give up: one text into one prompt. Pure.

The injector looks at the pane, asks `Typist.next` what to do, does it, and says what became of
it. The typist never acts on one look alone: tmux shows what the agent drew a moment ago, so two
looks must agree, some time apart, before anything is typed. What it then asks for carries the
`stamp` of the second look; tmux itself refuses it if anything in there has changed since
(pane, process, mode, cursor), which leaves no gap for a dialog or for a person's hand.

    waiting   nothing of ours is in the pane: paste once the prompt is empty and everybody quiet
    typed     pasted: press Enter once the text is to be seen in the prompt
    entered   Enter was pressed: done once the text is gone from the prompt, and again if not

Enter is repeated only while our own text still stands there, and not for ever: a text that
nothing submits stays as `typed, not submitted` until somebody does.

A typist can go on where another was cut off (`resume`). What became of a paste that nobody
watched may not be known: then neither pasting it again nor forgetting it would be right.
"""

from dataclasses import dataclass
from enum import StrEnum

from hoptell.tmux.screen import Reading, State, is_label, shows

AGREE_INTERVAL = 0.2
"""Seconds between two looks that must agree."""
QUIET_WAIT = 5.0
"""Seconds after a person's last key in which nothing is typed."""
DRAW_WAIT = 15.0
"""Seconds that an agent has to draw what was pasted; then it counts as lost."""
GONE_WAIT = 3.0
"""Seconds after which a text that was drawn and vanished, with nothing submitted, is lost; and
in which something else must stand in the prompt before ours counts as submitted."""
PASTES = 3
"""How often a text that gets lost is pasted before the pauses grow long."""
LOST_WAIT = 60.0
"""The long pause, in seconds."""
ENTER_WAITS = (1.5, 3.0, 6.0, 12.0, 60.0, 300.0)
"""Seconds before Enter is repeated: the first, second … time; then no more."""
POLL_INTERVAL = 0.5
SLOW_POLL_INTERVAL = 2.0
"""Seconds between looks at a pane that holds something back, and once it has for long."""
SLOW_AFTER = 30.0


@dataclass(frozen=True)
class Look:
    """One look at the pane."""

    stamp: str
    """Pane, process, mode and cursor: what tmux compares before it types."""
    reading: Reading
    problem: str | None = None
    """Why nothing can be typed into this pane, whatever its screen says."""
    person_at: float = float("-inf")
    """When somebody last pressed a key at a terminal that shows the pane, on `now`'s clock."""


@dataclass(frozen=True)
class Wait:
    """Look again after that many seconds; `reason` says what holds, '' if nothing does yet."""

    reason: str
    seconds: float


@dataclass(frozen=True)
class Paste:
    """Paste the next text, if tmux still finds `stamp`."""

    stamp: str


@dataclass(frozen=True)
class Enter:
    """Press Enter, if tmux still finds `stamp`."""

    stamp: str


@dataclass(frozen=True)
class Done:
    """The text was submitted; `by_hand` if somebody else sent or removed it."""

    by_hand: bool = False


@dataclass(frozen=True)
class Unclear:
    """The text was pasted, and is gone; whether somebody submitted it, nobody saw."""


Step = Wait | Paste | Enter | Done | Unclear


class Phase(StrEnum):
    WAITING = "waiting"
    TYPED = "typed"
    ENTERED = "entered"


_HELD = {
    State.BUSY: "the agent is busy",
    State.ASKING: "the agent asks something",
    State.IDLE_DRAFT: "something is typed in the agent's prompt",
    State.UNKNOWN: "the agent's prompt is not to be seen",
    State.UNSURE: "the agent's title does not say whether it works (see hoptell tmux --help)",
}
_NOT_SUBMITTED = "typed, not submitted: "


class Typist:
    """Types one text at a time; `now` is seconds on any clock that only goes forward."""

    def __init__(self) -> None:
        self.phase = Phase.WAITING
        self.label: str | None = None
        """What the agent shows instead of the text, once it was seen."""
        self._text = ""
        self._pasted_at = 0.0
        self._drawn = False
        self._unwatched = False
        self._pastes = 0
        self._entered_at = 0.0
        self._enters = 0
        self._agreed: tuple[Reading, str] | None = None
        self._agreed_since = 0.0
        self._held: tuple[str, float] = ("", 0.0)
        self._gone_since: float | None = None

    def next(self, look: Look, now: float) -> Step:
        """Say what to do after this look."""
        step = self._next(look, now)
        if not isinstance(step, Wait) or not step.reason:
            self._held = ("", now)
        elif step.reason != self._held[0]:
            self._held = (step.reason, now)
        elif now - self._held[1] > SLOW_AFTER:
            return Wait(step.reason, max(step.seconds, SLOW_POLL_INTERVAL))
        return step

    def pasted(self, text: str, now: float) -> None:
        """The paste was made: `text` is on its way to the prompt."""
        self.phase = Phase.TYPED
        self._text, self._pasted_at, self._drawn = text, now, False
        self.label, self._unwatched = None, False
        self._pastes += 1
        self._enters = 0
        self._forget_looks()

    def entered(self, now: float) -> None:
        """Enter was pressed."""
        self.phase = Phase.ENTERED
        self._entered_at = now
        self._enters += 1
        self._forget_looks()

    def resume(
        self, text: str, pasted_at: float, label: str | None, *, entered: bool, now: float
    ) -> None:
        """Go on with what another typist pasted, and pressed Enter for or not."""
        self.pasted(text, pasted_at)
        self.label, self._unwatched = label, True
        if entered:
            self.entered(now)

    def turned_down(self) -> None:
        """tmux found the pane changed and typed nothing."""
        self._forget_looks()

    def reset(self) -> None:
        """The text is dealt with: begin with the next."""
        self.phase = Phase.WAITING
        self._pastes = 0
        self._forget_looks()

    def saw_it_submitted(self, look: Look) -> bool:
        """Whether a look at what an agent left on the screen proves that it took Enter."""
        return self.phase is Phase.ENTERED and look.reading.empty

    def _next(self, look: Look, now: float) -> Step:
        if look.problem is not None:
            return self._hold(look.problem)
        match self.phase:
            case Phase.WAITING:
                return self._waiting(look, now)
            case Phase.TYPED:
                return self._typed(look, now)
            case Phase.ENTERED:
                return self._entered(look, now)

    def _waiting(self, look: Look, now: float) -> Step:
        if look.reading.state is not State.IDLE_EMPTY:
            return self._hold(_HELD[look.reading.state])
        if person := self._person(look, now):
            return person
        if self._pastes >= PASTES and now - self._pasted_at < LOST_WAIT:
            return self._hold("the agent did not show what was pasted")
        return self._agreeing(look, now) or Paste(look.stamp)

    def _typed(self, look: Look, now: float) -> Step:
        reading = look.reading
        if reading.typed == "":
            return self._vanished(look, now)
        self._gone_since = None
        mine = self._is_ours(reading)
        self._drawn |= mine
        if reading.state is not State.IDLE_DRAFT:
            return self._hold(_NOT_SUBMITTED + _HELD[reading.state])
        if not mine:
            return self._hold(_NOT_SUBMITTED + "something else stands in the prompt with it")
        if person := self._person(look, now):
            return person
        return self._agreeing(look, now) or Enter(look.stamp)

    def _vanished(self, look: Look, now: float) -> Step:
        """Nothing stands in the prompt, though Enter was not pressed."""
        if not self._drawn and now - self._pasted_at < DRAW_WAIT:
            return Wait("waits until the agent has drawn it", AGREE_INTERVAL)
        if not self._drawn and self._unwatched:
            return self._agreeing(look, now) or Unclear()
        if self._gone_since is None:
            self._gone_since = now
        if self._drawn and (look.person_at >= self._pasted_at or _is_busy(look)):
            return self._agreeing(look, now) or Done(by_hand=True)
        if self._drawn and now - self._gone_since < GONE_WAIT:
            return Wait("it vanished from the prompt", AGREE_INTERVAL)
        if _is_busy(look):
            return self._hold(_HELD[State.BUSY])
        self.phase = Phase.WAITING
        return self._waiting(look, now)

    def _entered(self, look: Look, now: float) -> Step:
        reading = look.reading
        if reading.typed is None:
            return self._hold("submitted, not seen yet: " + _HELD[reading.state])
        if not self._is_ours(reading):
            # It may be ours all the same, half drawn: after a resize, for one.
            seconds = GONE_WAIT if reading.typed else AGREE_INTERVAL
            return self._agreeing(look, now, seconds) or Done()
        if self._enters > len(ENTER_WAITS):
            return self._hold(_NOT_SUBMITTED + "the agent does not take Enter")
        if now - self._entered_at < ENTER_WAITS[self._enters - 1]:
            if self._enters == 1:  # as a rule it does at once: no news
                return Wait("", AGREE_INTERVAL)
            return Wait(_NOT_SUBMITTED + "waits until the agent takes Enter", POLL_INTERVAL)
        if reading.state is not State.IDLE_DRAFT:
            return self._hold(_NOT_SUBMITTED + _HELD[reading.state])
        if person := self._person(look, now):
            return person
        return self._agreeing(look, now) or Enter(look.stamp)

    def _is_ours(self, reading: Reading) -> bool:
        if not shows(reading, self._text):
            return False
        if not is_label(reading):
            return True
        # A label tells nothing of its text: ours is the first that is seen after the paste.
        self.label = self.label or reading.typed
        return reading.typed == self.label

    def _person(self, look: Look, now: float) -> Wait | None:
        left = look.person_at + QUIET_WAIT - now
        if left <= 0:
            return None
        self._agreed = None
        return Wait("somebody is typing", min(max(left, AGREE_INTERVAL), QUIET_WAIT))

    def _agreeing(self, look: Look, now: float, seconds: float | None = None) -> Wait | None:
        """None once this look agrees with one that is long enough ago."""
        seconds = AGREE_INTERVAL if seconds is None else seconds
        found = (look.reading, look.stamp)
        if found != self._agreed:
            self._agreed, self._agreed_since = found, now
        elif now - self._agreed_since >= seconds:
            return None
        return Wait("", AGREE_INTERVAL)

    def _hold(self, reason: str) -> Wait:
        self._agreed = None
        return Wait(reason, POLL_INTERVAL)

    def _forget_looks(self) -> None:
        self._agreed = None
        self._gone_since = None


def _is_busy(look: Look) -> bool:
    return look.reading.state is State.BUSY
