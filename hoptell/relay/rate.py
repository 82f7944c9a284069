"""How often one peer name may send (docs/protocol.md)."""

from collections import deque
from math import ceil, inf

from hoptell.errors import Refused
from hoptell.settings import Rate


class RateLimiter:
    """Sends per peer name in a sliding window, over all of the name's connections."""

    def __init__(self, rate: Rate) -> None:
        self.is_limited = rate.sends > 0
        self._sends = rate.sends
        self._seconds = rate.seconds
        self._attempts: dict[str, deque[float]] = {}
        self.due_at = inf
        """When `forget_idle` has something to do."""

    def take(self, name: str, now: float) -> None:
        """Count one attempt to send; only where the rate is limited.

        Raises:
            Refused: the name is over its rate. The attempt counts all the same.
        """
        attempts = self._attempts.get(name)
        if attempts is None:
            attempts = self._attempts[name] = deque(maxlen=self._sends)
            self.due_at = min(self.due_at, now + self._seconds)
        over = len(attempts) == self._sends and attempts[0] > now - self._seconds
        attempts.append(now)
        if over:
            wait = ceil(attempts[0] + self._seconds - now)
            raise Refused(
                f"too many messages: {self._sends} in {self._seconds:g} s are allowed; try again in"
                f" {wait} s, and put what belongs together into one message",
                reason="rate",
            )

    def forget_idle(self, now: float) -> None:
        """Drop the names without a recent attempt."""
        if now < self.due_at:
            return
        since = now - self._seconds
        self._attempts = {name: at for name, at in self._attempts.items() if at[-1] > since}
        self.due_at = now + self._seconds if self._attempts else inf
