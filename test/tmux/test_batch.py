"""Which messages go together into one paste, and which are only announced."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tmux import message, texts_in

from hoptell.render import render
from hoptell.tmux.batch import HARMLESS_START, MAX_PASTE_LENGTH, MAX_TEXT_LENGTH, Batch, choose
from hoptell.tmux.screen import Screen, State, read

COMMAND = "hoptell listen bob 0"


def chosen(*texts: str, notice: bool = False) -> Batch:
    messages = [message(text) for text in texts]
    batch = choose(messages, render=shown, notice=notice, command=COMMAND)
    assert batch is not None
    return batch


def shown(one):  # type: ignore[no-untyped-def]
    return render(one, now_ms=0, send_command="hoptell send").rstrip("\n")


def test_nothing_waits_nothing_is_pasted() -> None:
    assert choose([], render=shown, notice=False, command=COMMAND) is None


def test_messages_go_together_in_order_as_far_as_they_fit() -> None:
    texts = ["one", "x" * 5000, "y" * 5000, "z" * 5000, "last"]
    batch = chosen(*texts)
    assert (batch.count, batch.notice) == (3, False)
    assert texts_in(batch.text) == texts[:3]
    assert len(batch.text) <= MAX_PASTE_LENGTH


def test_the_largest_message_that_is_typed_always_fits() -> None:
    batch = chosen("é\n" * (MAX_TEXT_LENGTH // 2))
    assert not batch.notice
    assert chosen("x" * (MAX_TEXT_LENGTH + 1)).notice


def test_what_cannot_be_typed_waits_its_turn_and_is_announced_with_all_that_follows() -> None:
    assert chosen("fine", "bad \x1b[A", "fine too").count == 1
    batch = chosen("bad \x1b[A", "fine too")
    assert (batch.count, batch.notice) == (2, True)
    assert batch.text.startswith("[hoptell: 2 messages wait for you, from alice")


def test_a_notice_is_one_line_and_holds_no_word_of_the_messages() -> None:
    batch = chosen("secret plan", notice=True)
    assert "\n" not in batch.text and "secret" not in batch.text
    assert batch.text.endswith(COMMAND)


@pytest.mark.parametrize("control", ["\0", "\x03", "\r", "\x1b", "\x7f", "\x85", "\x9b"])
def test_a_control_character_makes_a_notice(control: str) -> None:
    assert chosen(f"a{control}b").notice


@given(st.lists(st.text(min_size=1, max_size=300), min_size=1, max_size=8), st.booleans())
def test_whatever_the_texts_a_paste_is_printable_harmless_and_no_prompt(
    texts: list[str], notice: bool
) -> None:
    batch = chosen(*texts, notice=notice)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", batch.text)
    assert batch.text[0] in HARMLESS_START
    assert 1 <= batch.count <= len(texts)
    rows = batch.text.split("\n")
    assert read(Screen(rows, (0, len(rows)))).state is not State.IDLE_EMPTY
