"""Every exception that hoptell raises on purpose.

Each one's text is one sentence that a person can act on. The command line prints it and
exits 1; the relay sends it in an `error` frame or a close reason; the sidecar returns it
as a tool error. None of them ever holds a token or a message's text.

    HoptellError
    ├── ConfigurationError      a setting or file is wrong: fix it and start again
    ├── ProtocolError           the other side broke the wire format: the connection closes
    ├── Refused                 well formed, but turned down: answered, and the connection stays
    │   └── LoginRefused        turned down for good (close codes 4001, 4002, 4003, 4005)
    ├── RelayUnreachable        no connection to the relay at the moment: trying again may help
    ├── Replaced                a newer connection took this peer name (close code 4004)
    └── InboxError              the inbox folder is unsafe or cannot be used
"""


class HoptellError(Exception):
    """Base of all of hoptell's errors; `str(error)` is one sentence that says what to do.

    Attributes:
        problem: what is wrong, without a full stop.
        fix: what to do about it, where the problem does not say that itself.
    """

    def __init__(self, problem: str, fix: str | None = None) -> None:
        self.problem = problem
        self.fix = fix
        super().__init__(problem if fix is None else f"{problem}: {fix}")


class ConfigurationError(HoptellError):
    """A setting, a settings file or a members file cannot be used as it is."""


class ProtocolError(HoptellError):
    """The other side sent something that is not the wire protocol."""


class Refused(HoptellError):
    """A well-formed request that was turned down whole: nothing was recorded or sent.

    Attributes:
        reason: a short fixed label for counters and logs (`rate`, `unknown`, `full` …).
    """

    def __init__(self, problem: str, fix: str | None = None, *, reason: str = "refused") -> None:
        self.reason = reason
        super().__init__(problem, fix)


class LoginRefused(Refused):
    """The relay does not let this peer in, and asking again will not change that.

    Attributes:
        code: the close code (4001, 4002, 4003 or 4005).
        said: the relay's own words, where this is what a client makes of them.
    """

    def __init__(self, problem: str, fix: str | None = None, *, code: int, said: str = "") -> None:
        self.code = code
        self.said = said
        super().__init__(problem, fix, reason="login")


class RelayUnreachable(HoptellError):
    """There is no connection to the relay at the moment.

    Attributes:
        lasting: trying again does not help until a person has changed something.
        maybe_accepted: the connection went before the answer came, so the message that was
            being sent may have been taken all the same.
    """

    def __init__(
        self,
        problem: str,
        fix: str | None = None,
        *,
        lasting: bool = False,
        maybe_accepted: bool = False,
    ) -> None:
        self.lasting = lasting
        self.maybe_accepted = maybe_accepted
        super().__init__(problem, fix)


class Replaced(HoptellError):
    """A newer connection with the same peer name took over (close code 4004)."""


class InboxError(HoptellError):
    """An inbox folder is not safe to use, or the file system refuses it."""
