"""Changing JSON as a text: what is not changed stays as it is written, comments and all."""

import copy
import json
import random
import re
from typing import Any

import pytest

from hoptell.setup import json_text

NEW = {"command": "h", "args": []}


def with_server(text: str) -> str:
    wanted = json_text.parse(text)
    wanted.setdefault("servers", {})["hoptell"] = NEW
    return json_text.changed(text, wanted)


def test_json_with_comments_and_final_commas_can_be_read() -> None:
    text = '\ufeff{"a": "// no comment, ]", /* x */ "b": [1, // y\n 2, // z\n],\n}'
    assert json_text.parse(text) == {"a": "// no comment, ]", "b": [1, 2]}
    assert json_text.parse("no json") == json_text.parse("[]") == {}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '{\n  // mine\n  "a": 1 // one\n}\n',
            '{\n  // mine\n  "a": 1, // one\n  "servers": {\n    "hoptell": {\n'
            '      "command": "h",\n      "args": []\n    }\n  }\n}\n',
        ),
        (
            '{\n\t"servers": {\n\t\t"x": {}, // x\n\t\t/* last */\n\t},\n}',
            '{\n\t"servers": {\n\t\t"x": {}, // x\n\t\t/* last */\n\t\t"hoptell": {\n'
            '\t\t\t"command": "h",\n\t\t\t"args": []\n\t\t}\n\t},\n}',
        ),
        (
            '{"servers": {"x": 1.50}, "a": 1,} // mine',
            '{"servers": {"x": 1.50, "hoptell": {"command": "h", "args": []}}, "a": 1,} // mine',
        ),
    ],
)
def test_a_member_is_added_in_the_way_of_the_rest(before: str, after: str) -> None:
    assert with_server(before) == after


@pytest.mark.parametrize(
    "text",
    [
        '\ufeff{"first": 1',
        '{"a": {"b": 1}, "a": {"c": 1}',
        '{"a": "\\ud800", "n": [12345678901234567890.123456789, 1E400, 1.50, -0]',
        '{ // mine\r\n\t"a": "ü"',
        '{\n    "a": 1',
    ],
)
def test_what_is_there_stays_as_it_is_written(text: str) -> None:
    ending = "\r\n}\r\n" if "\r\n" in text else "\n}" if "\n" in text else "}"
    after = with_server(text + ending)
    assert after.startswith(text + ",") and after.endswith(ending)
    assert json_text.parse(after)["servers"] == {"hoptell": NEW}
    assert after.count("\r\n") in (0, after.count("\n"))


@pytest.mark.parametrize("text", ["{}", "{\n}\n", "{ // mine\n}", "{ /* mine */ } // too\n"])
def test_an_empty_object_gets_its_first_member(text: str) -> None:
    after = with_server(text)
    assert json_text.parse(after) == {"servers": {"hoptell": NEW}}
    assert after.splitlines()[1] == '  "servers": {'


def test_a_value_is_replaced_and_what_stands_beside_it_stays() -> None:
    text = '{\n  "s": { // s\n    "c": "old", // c\n    "l": ["a"], // l\n  },\n}\n'
    wanted = {"s": {"c": "new", "l": ["a", "b"]}}
    expected = text.replace('"old"', '"new"').replace('["a"]', '["a", "b"]')
    assert json_text.changed(text, wanted) == expected


def test_what_needs_no_change_stays_as_it_is() -> None:
    text = '// mine\n{"n": 1.50, /* x */ "n": 2,}'
    assert json_text.changed(text, {"n": 2}) == text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"l": [1, // one\n 2]}', {"l": [1, 2, 3]}),
        ('{"a": 1}', {}),
        ("{", {"a": 1}),
        ("[]", {"a": 1}),
        ('{"l": ["\\ud800"]}', {"l": ["\ud800", 1]}),
    ],
)
def test_what_would_lose_something_is_refused(text: str, wanted: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        json_text.changed(text, wanted)


def test_any_layout_keeps_its_comments_and_says_what_is_wanted() -> None:
    chance = random.Random(7)

    def value(depth: int) -> Any:
        if depth and chance.random() < 0.6:
            return {f"k{n}": value(depth - 1) for n in range(chance.randrange(4))}
        return chance.choice([1, "x, }", [1, {"a": "// no"}], None, '\\"'])

    def written(value: Any) -> str:
        def gap() -> str:
            return chance.choice(["", " ", "\n  ", " // c\n", " /* d, } */ "])

        if not isinstance(value, dict):
            return gap() + json.dumps(value) + gap()
        members = [f"{gap()}{json.dumps(k)}{gap()}:{written(v)}" for k, v in value.items()]
        final = "," if members and chance.random() < 0.3 else ""
        return gap() + "{" + ",".join(members) + final + gap() + "}" + gap()

    def change(value: dict[str, Any]) -> None:
        for key in list(value):
            if isinstance(value[key], dict) and chance.random() < 0.7:
                change(value[key])
            elif not isinstance(value[key], dict) and chance.random() < 0.3:
                value[key] = chance.choice([2, ["new"], {"deep": {}}])
        if chance.random() < 0.5:
            value |= {"new": {"a": [], "b": {}}, "newer": 1}

    for _ in range(500):
        before = {"top": value(3), "more": value(2)}
        text = written(before)
        assert json_text.parse(text) == before
        wanted = copy.deepcopy(before)
        change(wanted)
        after = json_text.changed(text, wanted)
        assert json_text.parse(after) == wanted
        assert re.findall(r"// c|/\* d", after) == re.findall(r"// c|/\* d", text)
