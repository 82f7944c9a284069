"""Errors: their parts are attributes, and the sentence is made from them."""

import pytest

from hoptell.errors import (
    ConfigurationError,
    HoptellError,
    InboxError,
    LoginRefused,
    ProtocolError,
    Refused,
    RelayUnreachable,
    Replaced,
)


@pytest.mark.parametrize(
    "kind",
    [HoptellError, ConfigurationError, ProtocolError, Refused, RelayUnreachable, Replaced]
    + [InboxError],
)
def test_the_sentence_is_the_problem_and_what_to_do(kind: type[HoptellError]) -> None:
    error = kind("the file: it is gone", "make it")
    assert (error.problem, error.fix) == ("the file: it is gone", "make it")
    assert str(error) == "the file: it is gone: make it"
    assert str(kind("it is gone")) == "it is gone" and kind("it is gone").fix is None


def test_a_refused_login_keeps_the_relays_own_words() -> None:
    error = LoginRefused("it does not let us in: no", code=4002, said="no")
    assert (error.code, error.said, error.reason) == (4002, "no", "login")
