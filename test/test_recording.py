"""The picture that test/clients/record.py makes of what terminals show."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from clients.svg import CELL, Recording, Style, Terminal, animation, rows_of, still, thinned

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "two-agents.svg"
SVG = "{http://www.w3.org/2000/svg}"


def recording(*screens: str, seconds: float = 1.0) -> Recording:
    """One small terminal that shows these screens, one a second."""
    frames = tuple((number * seconds, (screen,)) for number, screen in enumerate(screens))
    return Recording((Terminal("a & b", 20, 3),), frames, ((0.0, "it <begins>"),), "a note")


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize(
    ("codes", "style"),
    [
        ("1;31", Style(color="#ff7b72", bold=True)),
        ("94;42", Style(color="#79c0ff", background="#3fb950")),
        ("38;5;196", Style(color="#ff0000")),
        ("38;5;244;4", Style(color="#808080", underline=True)),
        ("38;2;1;2;255;3", Style(color="#0102ff", italic=True)),
        ("48:5:16", Style(background="#000000")),
        ("2;7;9", Style(dim=True, inverse=True, struck=True)),
        ("1;2;22;39", Style()),
        ("31;0", Style()),
        ("777", Style()),
        ("38", Style()),
    ],
)
def test_colours_and_looks_are_those_of_the_terminal(codes: str, style: Style) -> None:
    assert rows_of(f"\x1b[{codes}mtext", 1) == [((0, "text", style),)]


def test_a_look_goes_on_from_one_line_into_the_next() -> None:
    bold = Style(bold=True)
    assert rows_of("\x1b[1mone\ntwo\x1b[0m end", 2) == [
        ((0, "one", bold),),
        ((0, "two", bold), (3, " end", Style())),
    ]


def test_rows_that_a_screen_lacks_are_empty_and_others_are_left_out() -> None:
    assert rows_of("one", 3)[1:] == [(), ()]
    assert len(rows_of("1\n2\n3\n4", 3)) == 3


def test_signs_that_a_font_may_lack_are_placed_by_themselves() -> None:
    assert rows_of("a\u2192b\u6f22c", 1)[0] == (
        (0, "a", Style()),
        (1, "\u2192", Style()),
        (2, "b", Style()),
        (3, "\u6f22", Style()),  # two columns wide
        (5, "c", Style()),
    )


def test_text_cannot_become_markup_and_other_sequences_are_dropped() -> None:
    hostile = "</text><script>&amp;\x1b]0;title\x07\x1b[2J\x1b(B\x00\x9b!"
    svg = animation(recording(hostile))
    assert "</text><script>&amp;!" in texts(svg)
    assert not list(ElementTree.fromstring(svg).iter(f"{SVG}script"))
    assert "it <begins>" in texts(svg) and "a & b" in texts(svg)


def test_a_background_is_one_piece_up_to_the_edge_if_the_whole_row_has_it() -> None:
    for screen, columns in (
        ("\x1b[48;5;16m> \x1b[1mtold", 20),
        ("  \x1b[48;5;16mnot all", 7),
        ("\x1b[48;5;16mnot\x1b[0m all", 3),
    ):
        (path,) = re.findall(r'<path d="([^"]+)" fill="#000000"', animation(recording(screen)))
        start, width = (float(one) for one in re.match(r"M([\d.]+) 0h([\d.]+)v", path).groups())
        assert round(width / CELL) == columns
        assert round(start / CELL) == (2 if columns == 7 else 0)


def test_a_row_is_stored_once_and_moves_only_when_it_changes() -> None:
    svg = animation(recording("same\none", "same\none", "same\ntwo", "same\none"))
    assert [texts(svg).count(text) for text in ("same", "one", "two")] == [1, 1, 1]
    (keys,) = re.findall(r"@keyframes k\d+\{(.*?\})\}", svg)
    assert re.findall(r"([\d.]+)%", keys) == ["0", "22.22", "33.33"]  # of 3 s and the pause of 6 s
    assert len(re.findall(r"<g class=\"k\d+\">", svg)) == 1


def test_without_movement_it_shows_the_end() -> None:
    svg = animation(recording("one", "two"))
    (keys,) = re.findall(r"@keyframes k0\{(.*?\})\}", svg)
    (at_rest,) = re.findall(r"\.k0\{([^;]+);", svg)
    assert keys.endswith(f"{{{at_rest}}}") and at_rest != "transform:none"
    assert "prefers-reduced-motion" in svg


def test_a_still_has_what_is_shown_at_that_time_and_nothing_that_moves() -> None:
    svg = still(recording("one", "two", "three"), 1.5)
    assert "two" in texts(svg) and not {"one", "three"} & set(texts(svg))
    assert "@keyframes k" not in svg


def test_only_frames_that_differ_are_kept_and_the_last_for_the_length() -> None:
    frames = [(5.0, ("a",)), (5.2, ("a",)), (5.4, ("b",)), (5.6, ("b",)), (6.0, ("b",))]
    assert [(round(at, 1), screens) for at, screens in thinned(frames)] == [
        (0.0, ("a",)),
        (0.4, ("b",)),
        (1.0, ("b",)),
    ]
    assert list(thinned([(0.0, ("a",)), (1.0, ("b",))])) == [(0.0, ("a",)), (1.0, ("b",))]


def test_the_recording_in_the_readme_needs_nothing_and_tells_nothing_of_a_machine() -> None:
    svg = PICTURE.read_text(encoding="utf-8")
    assert len(svg) < 400_000
    ElementTree.fromstring(svg)
    for foreign in ("<script", "<image", "@import", "@font-face", "url(", "javascript:", "<a "):
        assert foreign not in svg
    assert re.findall(r"https?://[^\s\"<]+", svg) == ["http://www.w3.org/2000/svg"]
    shown = "\n".join(texts(svg))
    for place in ("/tmp", "/root", "/home", "127.0.0.1", "sk-ant", "mock", "TOKEN"):
        assert place not in shown, place
    for words in ("1 message waits", "min(delay * 2, 60)", "language model says is scripted"):
        assert words in shown, words
