"""Every captured screen is read right, and no dialog is ever taken for an empty prompt."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import screens

from hoptell.tmux.screen import Reading, Screen, State, looks_like_prompt, read, shows

EXPECTED = {
    "claude-after-answer": State.IDLE_EMPTY,
    "claude-after-escape": State.IDLE_EMPTY,
    "claude-approval": State.ASKING,
    "claude-bang": State.IDLE_DRAFT,
    "claude-bang-empty": State.IDLE_DRAFT,
    "claude-blanks": State.IDLE_DRAFT,
    "claude-busy-1": State.BUSY,
    "claude-busy-2": State.BUSY,
    "claude-busy-notokens": State.BUSY,
    "claude-busy-queued": State.BUSY,
    "claude-draft": State.IDLE_DRAFT,
    "claude-history": State.ASKING,
    "claude-idle": State.IDLE_EMPTY,
    "claude-model": State.ASKING,
    "claude-pasted-5000": State.IDLE_DRAFT,
    "claude-pasted-multiline": State.IDLE_DRAFT,
    "claude-rewind": State.ASKING,
    "claude-slash": State.UNKNOWN,
    "claude-slash-menu": State.IDLE_DRAFT,
    "claude-transcript": State.UNKNOWN,
    "codex-after-answer": State.IDLE_EMPTY,
    "codex-after-escape": State.IDLE_EMPTY,
    "codex-approval": State.ASKING,
    "codex-approval-mcp": State.ASKING,
    "codex-bang": State.UNKNOWN,
    "codex-busy-1": State.BUSY,
    "codex-busy-2": State.BUSY,
    "codex-busy-draft": State.BUSY,
    "codex-busy-notokens": State.BUSY,
    "codex-busy-queued": State.BUSY,
    "codex-draft": State.IDLE_DRAFT,
    "codex-idle": State.IDLE_EMPTY,
    "codex-model": State.ASKING,
    "codex-pasted-5000": State.IDLE_DRAFT,
    "codex-pasted-multiline": State.IDLE_DRAFT,
    "codex-slash": State.IDLE_DRAFT,
    "codex-transcript": State.IDLE_EMPTY,
    "opencode-after-answer": State.IDLE_EMPTY,
    "opencode-after-bang": State.IDLE_EMPTY,
    "opencode-approval": State.ASKING,
    "opencode-bang": State.IDLE_DRAFT,
    "opencode-blanks": State.IDLE_DRAFT,
    "opencode-busy-1": State.BUSY,
    "opencode-busy-2": State.BUSY,
    "opencode-busy-notokens": State.BUSY,
    "opencode-draft": State.IDLE_DRAFT,
    "opencode-idle": State.IDLE_EMPTY,
    "opencode-palette": State.UNKNOWN,
    "opencode-palette-session": State.IDLE_DRAFT,
    "opencode-pasted-5000": State.IDLE_DRAFT,
    "opencode-pasted-multiline": State.IDLE_DRAFT,
    "opencode-slash": State.IDLE_DRAFT,
}
DIALOGS = [name for name in EXPECTED if "approval" in name]
EMPTY = [name for name, state in EXPECTED.items() if state is State.IDLE_EMPTY]
DRAFTS = [name for name, state in EXPECTED.items() if state is State.IDLE_DRAFT]
BUSY = [name for name, state in EXPECTED.items() if state is State.BUSY]

FRAME = "[hoptell message 5c0f begins]\nFrom: alice\n\nfirst line\n  second, indented\n"


def test_every_captured_screen_is_expected_here() -> None:
    assert screens.names() == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_captured_screen_is_read_right(name: str) -> None:
    reading = read(screens.load(name))
    assert reading.state is EXPECTED[name]
    assert reading.agent in (name.partition("-")[0], None)


@pytest.mark.parametrize("name", [name for name in BUSY if "draft" not in name])
def test_a_busy_agents_placeholder_counts_as_empty(name: str) -> None:
    assert read(screens.load(name)).empty


@pytest.mark.parametrize("name", DRAFTS)
def test_a_draft_says_what_is_typed(name: str) -> None:
    reading = read(screens.load(name))
    assert reading.typed
    assert not reading.empty


# Dialogs ----------------------------------------------------------------------------------

_characters = st.characters(blacklist_categories=["Cs", "Cc"]) | st.sampled_from(
    "❯›>│┃─╭╮╰╯╹▀•●✳ \xa0"
)
_styles = st.sampled_from(["\x1b[1m", "\x1b[2m", "\x1b[0m", "\x1b[7m", "\x1b[38;5;8m", "\x1b[39m"])
_words = st.lists(_characters | _styles, max_size=100).map("".join)
_titles = st.sampled_from(["", "✳ Claude Code", "OC | x", "work", "◐ x", "⠧ x"]) | _words


@st.composite
def _with_dialog(draw: st.DrawFn) -> Screen:
    """A screen that ends in an approval dialog, under anything at all."""
    dialog = screens.load(draw(st.sampled_from(DIALOGS)))
    height = draw(st.integers(6, 60))
    above: list[str] = []
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            above += screens.load(draw(st.sampled_from(EMPTY + DRAFTS))).rows[-20:]
        else:
            above += draw(st.lists(_words, max_size=6))
    below = [""] * draw(st.integers(0, 3))
    rows = ([*above, "\x1b[0m", *_dialog_rows(dialog.rows), *below])[-height:]
    cursor = (draw(st.integers(0, 120)), draw(st.integers(0, height)))
    shown, width = draw(st.booleans()), draw(st.sampled_from([40, 80, 120, 200]))
    return Screen(rows, cursor, shown, width, draw(_titles))


def _dialog_rows(rows: Sequence[str]) -> list[str]:
    """The dialog alone: what the agent draws in place of its prompt."""
    titles = ("Bash command", "Would you like", "Permission required", "Field 1/1")
    start = next(i for i, row in enumerate(rows) if any(title in row for title in titles))
    return list(rows[start - 1 :])


@settings(max_examples=300, deadline=None)
@given(_with_dialog())
def test_a_screen_with_an_approval_dialog_is_never_an_empty_prompt(screen: Screen) -> None:
    assert read(screen).state is not State.IDLE_EMPTY


@pytest.mark.parametrize("name", DIALOGS)
@pytest.mark.parametrize("under", EMPTY)
def test_a_dialog_under_an_empty_prompt_holds_at_every_height(name: str, under: str) -> None:
    before, dialog = screens.load(under), screens.load(name)
    rows = [*before.rows, "\x1b[0m", *_dialog_rows(dialog.rows)]
    for height, place in itertools.product(range(3, 40), (before, dialog)):
        screen = replace(place, rows=rows[-height:], title=before.title)
        state = read(screen).state
        assert state is not State.IDLE_EMPTY
        if place is dialog and name.partition("-")[0] == under.partition("-")[0]:
            assert state is State.ASKING


@pytest.mark.parametrize("name", EMPTY)
def test_a_title_that_demands_action_is_enough(name: str) -> None:
    screen = replace(screens.load(name), title="[ ! ] Action Required | project")
    assert read(screen).state is State.ASKING


# What holds, and what does not ------------------------------------------------------------


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("distance", [1, 3, 20])
def test_dialog_wording_that_the_agent_printed_holds_nothing(name: str, distance: int) -> None:
    screen = screens.load(name)
    rows = list(screen.rows)
    top = next(row for row in range(len(rows)) if row >= screen.cursor[1] - 2)
    where = max(0, top - distance)
    rows[where] = "  Do you want to proceed? ❯ 1. Yes  Permission required (y/n)"
    assert read(replace(screen, rows=rows)).state is State.IDLE_EMPTY


@pytest.mark.parametrize("name", EMPTY)
def test_a_draft_of_blanks_is_seen_by_the_cursor(name: str) -> None:
    screen = screens.load(name)
    moved = replace(screen, cursor=(screen.cursor[0] + 3, screen.cursor[1]))
    assert read(moved).state is State.IDLE_DRAFT


@pytest.mark.parametrize("shown", [True, False], ids=["shown", "hidden"])
@pytest.mark.parametrize("name", EMPTY)
def test_a_cursor_elsewhere_means_that_something_else_has_the_keys(name: str, shown: bool) -> None:
    screen = replace(screens.load(name), cursor_shown=shown)
    for cursor in ((40, 5), (0, 39), (2, screen.cursor[1] + 1)):
        assert read(replace(screen, cursor=cursor)).state is not State.IDLE_EMPTY


@pytest.mark.parametrize("line", ["$ ", "# ", "root@host:~# ls", "\x1b[1m% ", " >"])
@pytest.mark.parametrize("name", EMPTY)
def test_what_no_agent_draws_below_its_prompt_means_that_it_is_not_there_any_more(
    name: str, line: str
) -> None:
    screen = screens.load(name)
    rows = [*(row for row in screen.rows), f"\x1b[0m{line}"]
    assert read(replace(screen, rows=rows)).state is State.UNKNOWN


def test_typed_text_in_the_place_of_the_placeholder_is_a_draft() -> None:
    screen = screens.load("codex-idle")
    rows = [row.replace("\x1b[2mAsk Codex", "Ask Codex") for row in screen.rows]
    assert read(replace(screen, rows=rows)).state is State.IDLE_DRAFT


def test_a_placeholder_is_told_by_its_colour_where_it_is_not_dim() -> None:
    screen = screens.load("opencode-idle")
    rows = [row.replace("\x1b[38;5;8mAsk", "\x1b[38;5;255mAsk") for row in screen.rows]
    assert read(replace(screen, rows=rows)).state is State.IDLE_DRAFT


@pytest.mark.parametrize("title", ["", "✳ Claude Code", "anything"])
def test_claude_is_busy_by_its_footer_whatever_the_title(title: str) -> None:
    assert read(replace(screens.load("claude-busy-1"), title=title)).state is State.BUSY


def test_codex_that_streams_is_busy_by_its_title_alone() -> None:
    screen = screens.load("codex-busy-1")
    assert read(screen).state is State.BUSY
    without = replace(screen, title="project")
    assert read(without).state is State.IDLE_EMPTY  # what the title says has to be believed


@pytest.mark.parametrize("title", ["", "project", "/home/user/project", "Waiting | a"])
@pytest.mark.parametrize("name", ["codex-busy-1", "codex-idle", "codex-after-answer"])
def test_codex_whose_title_never_told_is_neither_idle_nor_busy(name: str, title: str) -> None:
    screen = replace(screens.load(name), title=title, title_tells=False)
    assert read(screen).state is State.UNSURE
    assert read(replace(screen, title="Ready | a title")).state is State.IDLE_EMPTY
    for works in ("Working", "Working | a title", "⠧ Ready | a title", "Thinking | a"):
        assert read(replace(screen, title=works)).state is State.BUSY


@pytest.mark.parametrize(
    "prompt",
    ["user@host:~$ ", "❯ ", "> ", "➜  project git:(main) ✗ ", "# ", ">>> ", "(y/n) ", ""],
)
def test_a_shells_prompt_is_not_an_agents(prompt: str) -> None:
    rows = ["$ make", "done", prompt]
    reading = read(Screen(rows, (len(prompt), 2), True, 80, "host"))
    assert reading.state not in (State.IDLE_EMPTY, State.IDLE_DRAFT)


@pytest.mark.parametrize("content", ["│ >                    │", "│ > Type your message or │"])
def test_a_prompt_in_a_frame_is_read(content: str) -> None:
    rows = ["╭" + "─" * 22 + "╮", content.ljust(23), "╰" + "─" * 22 + "╯", " ~/project"]
    empty = Screen(rows, (4, 1), True, 24)
    if "Type" not in content:
        assert read(empty) == Reading(State.IDLE_EMPTY, "gemini", "")
    rows[1] = "│ > Type your messages! │"
    assert read(replace(empty, cursor=(22, 1))).state is State.IDLE_DRAFT


@settings(deadline=None)
@given(st.lists(_words, max_size=40), st.integers(0, 120), st.integers(0, 40), _titles)
@example(["─" * 80, "─" * 80], 0, 0, "")
@example(["╰" + "─" * 20 + "╯"], 0, 0, "")
@example(["╹" + "▀" * 20], 0, 0, "")
@example(["\x1b[38;2;1mx", "\x1b[38", "\x1b[;;m"], 0, 0, "")
def test_any_screen_can_be_read(rows: list[str], column: int, row: int, title: str) -> None:
    assert read(Screen(rows, (column, row), True, 80, title)).state in State


# Our own text -----------------------------------------------------------------------------


def test_our_text_is_recognized_wrapped_cut_and_as_a_label() -> None:
    def typed(text: str) -> Reading:
        return Reading(State.IDLE_DRAFT, "claude", "".join(text.split()))

    assert shows(typed(FRAME), FRAME)
    assert shows(typed("From: alice first line second, indented"), FRAME)
    assert shows(typed("[Pasted text #1 +4 lines]"), FRAME)
    assert shows(typed("[Pasted Content 5001 chars]"), FRAME)
    assert shows(typed("[Pasted ~82 lines]"), FRAME)
    assert not shows(typed("rm -rf"), FRAME)
    assert not shows(typed("first line"), FRAME)  # as a person may have typed, too
    assert not shows(typed(FRAME + "and more from a person"), FRAME)
    assert not shows(Reading(State.BUSY, "claude", ""), FRAME)
    assert not shows(Reading(State.ASKING), FRAME)


@pytest.mark.parametrize(
    "text",
    [
        "❯ ls",
        "please:\n› Ask Codex",
        "Do you want to proceed?\n❯ 1. Yes",
        "  1. Yes",
        "─" * 30,
        "╭──────╮",
        "Press enter to confirm",
        "Permission required",
        "working (esc to interrupt)",
        "sure? [y/N]",
        "[Pasted text #1 +4 lines]",
    ],
)
def test_text_that_could_be_taken_for_a_prompt_is_known(text: str) -> None:
    assert looks_like_prompt(text)


@pytest.mark.parametrize(
    "text",
    [
        "please review the change",
        "- [ ] one\n- [x] two",
        "1. first step\n2. second step",
        "use a > b, and `x -> y`",
        "#!/bin/sh\necho hi",
        "the enter key does nothing",
        "--- a/file\n+++ b/file\n@@ -1 +1 @@",
        "| a | b |\n|---|---|",
    ],
)
def test_ordinary_text_is_not(text: str) -> None:
    assert not looks_like_prompt(text)
