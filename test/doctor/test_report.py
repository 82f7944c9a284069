"""The doctor's lines, as text and as JSON."""

import json
from pathlib import Path

import pytest

from hoptell.doctor import report
from hoptell.doctor.report import CHECKS, Line
from hoptell.errors import HoptellError

LINES = [
    Line("python", "ok", "Python 3"),
    Line("inbox", "fail", "2 messages wait", "read them", about="alice"),
    Line("wake", "warn", "nothing"),
]


def test_as_text_it_is_one_line_a_check_with_what_to_do() -> None:
    assert report.as_text(LINES).split("\n") == [
        "ok    python: Python 3",
        "FAIL  inbox alice: 2 messages wait: read them",
        "warn  wake: nothing",
    ]


def test_as_json_it_has_the_documented_shape() -> None:
    value = json.loads(report.as_json(LINES, "1.2"))
    assert value["version"] == "1.2" and value["ok"] is False
    assert value["checks"][1] == {
        "check": "inbox",
        "about": "alice",
        "status": "fail",
        "message": "2 messages wait",
        "fix": "read them",
    }
    assert value["checks"][0]["about"] is None and value["checks"][0]["fix"] is None
    assert json.loads(report.as_json(LINES[:1] + LINES[2:], "1"))["ok"] is True


def test_a_sentence_with_colons_in_it_is_not_taken_apart() -> None:
    error = HoptellError("a: b", "c: d")
    assert report.failed("agents", error) == Line("agents", "fail", "a: b", "c: d")
    assert report.failed("agents", HoptellError("a: b")).fix is None


def test_no_secret_and_no_control_character_gets_out() -> None:
    line = Line("login", "fail", "tok-en\x1b[31m\nx", "use tok-en", about="tok-en")
    for text in (report.as_text([line], ["tok-en"]), report.as_json([line], "1", ["tok-en"])):
        assert "tok-en" not in text and "\x1b" not in text and "***" in text
    assert report.as_text([line], ["tok-en"]).count("\n") == 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-5, "0 s"), (59.6, "60 s"), (300, "5 min"), (7200, "2 h"), (200_000, "2 days")],
)
def test_spans_of_time_are_in_words(seconds: float, words: str) -> None:
    assert report.span(seconds) == words


def test_the_document_lists_every_check_and_no_other() -> None:
    text = (Path(__file__).parent.parent.parent / "docs" / "doctor.md").read_text()
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| `")]
    assert {name.strip(" `"): what.strip() for name, what in rows} == CHECKS
    assert [name.strip(" `") for name, _ in rows] == list(CHECKS)
