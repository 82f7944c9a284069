"""The typist's decisions, on a clock of the test's own; no tmux."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoptell.tmux.screen import Reading, State
from hoptell.tmux.typist import (
    AGREE_INTERVAL,
    DRAW_WAIT,
    ENTER_WAITS,
    GONE_WAIT,
    LOST_WAIT,
    PASTES,
    QUIET_WAIT,
    SLOW_AFTER,
    SLOW_POLL_INTERVAL,
    Done,
    Enter,
    Look,
    Paste,
    Phase,
    Step,
    Typist,
    Unclear,
    Wait,
)

TEXT = "[hoptell message 5c0f begins]\nFrom: alice\n\nhello\n[hoptell message 5c0f ends]"
EMPTY = Look("at 2,27", Reading(State.IDLE_EMPTY, "claude", ""))
OURS = Look("at 9,27", Reading(State.IDLE_DRAFT, "claude", "".join(TEXT.split())))
DRAFT = Look("at 5,27", Reading(State.IDLE_DRAFT, "claude", "rm-rf"))
BUSY = Look("at 2,27", Reading(State.BUSY, "claude", ""))
ASKING = Look("at 1,33", Reading(State.ASKING))
UNKNOWN = Look("at 0,0", Reading(State.UNKNOWN))


class Clock:
    """Drives a typist: each look takes place as soon as the last step allows."""

    def __init__(self) -> None:
        self.typist = Typist()
        self.now = 1000.0

    def see(self, look: Look) -> Step:
        step = self.typist.next(look, self.now)
        if isinstance(step, Wait):
            self.now += step.seconds
        return step

    def until_step(self, look: Look, seconds: float = 1.0) -> Step:
        """Show the same look again and again until the step is not to wait, or time is up."""
        end = self.now + seconds
        step: Step = Wait("", 0)
        while isinstance(step, Wait) and self.now <= end:
            step = self.see(look)
        return step

    def paste(self) -> None:
        assert self.until_step(EMPTY) == Paste(EMPTY.stamp)
        self.typist.pasted(TEXT, self.now)

    def enter(self) -> None:
        self.paste()
        assert self.until_step(OURS) == Enter(OURS.stamp)
        self.typist.entered(self.now)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_text_goes_in_is_submitted_and_done(clock: Clock) -> None:
    clock.enter()
    assert clock.until_step(BUSY) == Done()


def test_one_look_is_never_enough_to_paste(clock: Clock) -> None:
    assert isinstance(clock.typist.next(EMPTY, 1.0), Wait)
    assert isinstance(clock.typist.next(EMPTY, 1.0 + AGREE_INTERVAL / 2), Wait)
    assert clock.typist.next(EMPTY, 1.01 + AGREE_INTERVAL) == Paste(EMPTY.stamp)


def test_two_looks_that_differ_do_not_agree(clock: Clock) -> None:
    moved = replace(EMPTY, stamp="at 3,27")
    for now, look in enumerate([EMPTY, moved, EMPTY, BUSY, EMPTY]):
        assert isinstance(clock.typist.next(look, float(now)), Wait)


@pytest.mark.parametrize("look", [BUSY, ASKING, UNKNOWN, DRAFT])
def test_nothing_is_pasted_while_something_holds(clock: Clock, look: Look) -> None:
    assert isinstance(clock.until_step(look, 600), Wait)
    assert clock.until_step(EMPTY) == Paste(EMPTY.stamp)


def test_a_problem_of_the_pane_holds_whatever_the_screen_says(clock: Clock) -> None:
    step = clock.until_step(replace(EMPTY, problem="the pane is in copy-mode"), 60)
    assert isinstance(step, Wait) and step.reason == "the pane is in copy-mode"


def test_a_person_who_types_is_left_alone_for_five_seconds(clock: Clock) -> None:
    typed_at = clock.now
    look = replace(EMPTY, person_at=typed_at)
    assert clock.until_step(look, 60) == Paste(EMPTY.stamp)
    assert clock.now >= typed_at + QUIET_WAIT


def test_looks_grow_rarer_while_the_same_thing_holds(clock: Clock) -> None:
    clock.until_step(BUSY, SLOW_AFTER)
    step = clock.see(BUSY)
    assert isinstance(step, Wait) and step.seconds == SLOW_POLL_INTERVAL
    step = clock.see(ASKING)
    assert isinstance(step, Wait) and step.seconds < SLOW_POLL_INTERVAL


@pytest.mark.parametrize("look", [ASKING, UNKNOWN, replace(OURS, reading=BUSY.reading), DRAFT])
def test_enter_is_withheld_from_everything_but_our_text(clock: Clock, look: Look) -> None:
    clock.paste()
    assert isinstance(clock.until_step(look, 2), Wait)


def test_a_dialog_between_paste_and_enter_delays_enter_until_it_closes(clock: Clock) -> None:
    clock.paste()
    step = clock.until_step(ASKING, 3600)
    assert isinstance(step, Wait) and step.reason.startswith("typed, not submitted")
    assert clock.until_step(OURS) == Enter(OURS.stamp)


def test_a_person_who_types_into_our_text_keeps_it(clock: Clock) -> None:
    clock.paste()
    both = replace(OURS, reading=replace(OURS.reading, typed="[hoptellrm-rf"))
    step = clock.until_step(both, 600)
    assert isinstance(step, Wait) and "something else" in step.reason


def test_a_text_that_a_person_submits_or_removes_is_done_by_hand(clock: Clock) -> None:
    clock.paste()
    clock.see(OURS)
    assert clock.until_step(replace(EMPTY, person_at=clock.now)) == Done(by_hand=True)


def test_a_slow_agent_gets_its_time_to_draw(clock: Clock) -> None:
    clock.paste()
    assert isinstance(clock.until_step(EMPTY, DRAW_WAIT - 1), Wait)
    assert clock.until_step(OURS) == Enter(OURS.stamp)


def test_a_text_that_got_lost_is_pasted_again_and_then_only_now_and_then(clock: Clock) -> None:
    for _ in range(PASTES):
        assert clock.until_step(EMPTY, DRAW_WAIT + 2) == Paste(EMPTY.stamp)
        clock.typist.pasted(TEXT, clock.now)
    step = clock.until_step(EMPTY, LOST_WAIT - 5)
    assert isinstance(step, Wait) and "did not show" in step.reason
    assert clock.until_step(EMPTY, 30) == Paste(EMPTY.stamp)


def test_a_text_that_a_dialog_swallowed_is_pasted_again(clock: Clock) -> None:
    clock.paste()
    clock.see(OURS)
    clock.until_step(ASKING, 5)
    assert clock.until_step(EMPTY, 10) == Paste(EMPTY.stamp)


def test_enter_is_repeated_while_our_text_stands_there_and_not_for_ever(clock: Clock) -> None:
    clock.enter()
    pressed = [clock.now]
    while isinstance(clock.until_step(OURS, 2 * max(ENTER_WAITS)), Enter):
        pressed.append(clock.now)
        clock.typist.entered(clock.now)
    gaps = [b - a for a, b in zip(pressed, pressed[1:], strict=False)]
    assert len(gaps) == len(ENTER_WAITS)
    assert all(gap >= least for gap, least in zip(gaps, ENTER_WAITS, strict=True))
    step = clock.see(OURS)
    assert isinstance(step, Wait) and step.reason.startswith("typed, not submitted")
    assert clock.until_step(EMPTY) == Done()


def test_a_screen_that_changed_is_not_success(clock: Clock) -> None:
    clock.enter()
    assert isinstance(clock.until_step(replace(OURS, stamp="elsewhere")), Wait)
    assert isinstance(clock.until_step(ASKING, 60), Wait)
    assert isinstance(clock.until_step(UNKNOWN, 60), Wait)


def test_a_new_draft_after_the_submit_is_not_our_text(clock: Clock) -> None:
    clock.enter()
    assert isinstance(clock.until_step(DRAFT, GONE_WAIT / 2), Wait)  # it may be ours, half drawn
    assert clock.until_step(DRAFT, GONE_WAIT) == Done()


def label(number: int) -> Look:
    typed = f"[Pastedtext#{number}+4lines]"
    return replace(OURS, reading=replace(OURS.reading, typed=typed))


def test_a_label_of_something_else_that_was_pasted_is_not_our_text(clock: Clock) -> None:
    clock.paste()
    assert clock.until_step(label(1)) == Enter(OURS.stamp)
    both = replace(
        OURS, reading=replace(OURS.reading, typed=label(1).reading.typed + "[Pasted~2lines]")
    )
    assert isinstance(clock.until_step(both, 600), Wait)
    assert clock.until_step(label(1)) == Enter(OURS.stamp)
    clock.typist.entered(clock.now)
    assert clock.until_step(label(2), 2 * GONE_WAIT) == Done()


def test_a_persons_few_words_are_not_our_text_though_they_stand_in_it_too(clock: Clock) -> None:
    clock.paste()
    word = replace(OURS, reading=replace(OURS.reading, typed="hello"))
    assert isinstance(clock.until_step(word, 600), Wait)


# Where another typist was cut off ---------------------------------------------------------


def resumed(clock: Clock, *, entered: bool, seen_as: str | None = None, ago: float = 60.0) -> None:
    clock.typist.resume(TEXT, clock.now - ago, seen_as, entered=entered, now=clock.now)


def test_what_another_typist_left_in_the_prompt_gets_its_enter(clock: Clock) -> None:
    resumed(clock, entered=False)
    assert clock.until_step(OURS) == Enter(OURS.stamp)


def test_what_another_typist_sent_is_done_once_it_is_gone_and_else_sent_again(clock: Clock) -> None:
    resumed(clock, entered=True)
    assert clock.until_step(OURS, 2 * ENTER_WAITS[0]) == Enter(OURS.stamp)
    clock.typist.entered(clock.now)
    assert clock.until_step(EMPTY) == Done()


@pytest.mark.parametrize("look", [EMPTY, BUSY, replace(EMPTY, person_at=1e9)])
def test_what_vanished_while_nobody_watched_is_neither_done_nor_pasted_again(
    clock: Clock, look: Look
) -> None:
    resumed(clock, entered=False)
    assert clock.until_step(look) == Unclear()


def test_an_agent_may_still_be_drawing_what_another_typist_pasted(clock: Clock) -> None:
    resumed(clock, entered=False, ago=1.0)
    assert isinstance(clock.until_step(EMPTY, DRAW_WAIT - 2), Wait)
    assert clock.until_step(OURS) == Enter(OURS.stamp)


def test_a_label_that_another_typist_saw_tells_our_text_from_a_persons(clock: Clock) -> None:
    resumed(clock, entered=False, seen_as=label(1).reading.typed)
    assert isinstance(clock.until_step(label(2), 600), Wait)
    assert clock.until_step(label(1)) == Enter(OURS.stamp)


def test_what_tmux_turned_down_is_looked_at_anew(clock: Clock) -> None:
    assert clock.until_step(EMPTY) == Paste(EMPTY.stamp)
    clock.typist.turned_down()
    assert isinstance(clock.typist.next(EMPTY, clock.now), Wait)


_looks = st.sampled_from([EMPTY, OURS, DRAFT, BUSY, ASKING, UNKNOWN])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(_looks, st.integers(1, 8), st.booleans()), max_size=60))
def test_whatever_comes_only_an_empty_prompt_is_pasted_into_and_only_our_text_entered(
    course: list[tuple[Look, int, bool]],
) -> None:
    clock = Clock()
    typist = clock.typist
    for look, repeats, person in course:
        for _ in range(repeats):
            now = clock.now
            phase = typist.phase
            look = replace(look, person_at=now if person else float("-inf"))
            step = clock.see(look)
            assert isinstance(step, Wait) or not person or isinstance(step, Done)
            if isinstance(step, Paste):
                assert look.reading.state is State.IDLE_EMPTY
                typist.pasted(TEXT, clock.now)
            elif isinstance(step, Enter):
                assert phase is not Phase.WAITING and look.reading == OURS.reading
                typist.entered(clock.now)
            elif isinstance(step, Done):
                assert look.reading != OURS.reading and look.reading.typed is not None
                typist.reset()
