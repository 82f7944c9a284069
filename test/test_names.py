"""Names, roles and addresses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptell.names import (
    MAX_ROLES,
    NAME_PATTERN,
    address_problem,
    is_name,
    member_in,
    name_problem,
    owner_problem,
    owns,
    roles_problem,
)

NAMES = st.from_regex(NAME_PATTERN, fullmatch=True)


@pytest.mark.parametrize("name", ["a", "7", "alice-2", "A_b", "a" * 64, "all"])
def test_letters_digits_hyphens_and_underscores_make_a_name(name: str) -> None:
    assert is_name(name)
    assert name_problem(name) is None
    assert address_problem(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-a",
        "_a",
        "a" * 65,
        "a b",
        "a.b",
        "a:b",
        "a/b",
        "..",
        "a\n",
        "\na",
        "ä",
        "١",
        "a\0",
        "@a",
    ],
)
def test_everything_else_is_not_a_name(name: str) -> None:
    assert not is_name(name)
    assert "is not a name: use 1 to 64 letters" in (name_problem(name) or "")


@given(st.text(max_size=80))
def test_a_name_is_safe_as_a_file_name(text: str) -> None:
    if is_name(text):
        assert text.isascii() and not set(text) & set("/\\.: \n\0") and text not in ("", ".", "..")


@given(st.text(max_size=500))
def test_a_problem_is_one_short_line_that_a_terminal_can_show(text: str) -> None:
    for problem in (name_problem(text), address_problem(text), roles_problem([text])):
        if problem is not None:
            assert problem.isascii() and problem.isprintable()
            assert len(problem) < 1000


def test_a_long_wrong_name_is_cut_off() -> None:
    problem = name_problem("x" * 10_000)
    assert problem is not None and problem.startswith(f"'{'x' * 64}...' is not a name")


@pytest.mark.parametrize("address", ["bob", "@reviewer", "@all"])
def test_a_name_a_role_and_everyone_are_addresses(address: str) -> None:
    assert address_problem(address) is None


@pytest.mark.parametrize("address", ["", "@", "@@a", "a@b", "#room", "@a b", "bob,eve"])
def test_anything_else_is_not_an_address_and_the_answer_says_what_is(address: str) -> None:
    assert "use a peer name, @role or @all" in (address_problem(address) or "")


def test_a_peer_has_at_most_16_roles() -> None:
    roles = [f"role-{number}" for number in range(17)]
    assert MAX_ROLES == 16
    assert roles_problem(roles[:16]) is None
    assert roles_problem(roles) == "a peer has at most 16 roles, not 17"


def test_the_role_all_is_reserved() -> None:
    assert "reserved" in (roles_problem(["dev", "all"]) or "")


def test_a_role_that_is_no_name_is_named() -> None:
    assert roles_problem(["dev", "a b"]) is not None
    assert (roles_problem(["dev", "a b"]) or "").startswith("'a b' is not a role")


@given(NAMES)
def test_a_member_owns_the_own_name_and_what_starts_with_it_and_a_hyphen(member: str) -> None:
    assert owns(member, member)
    assert owns(member, f"{member}-2")
    assert not owns(member, f"{member}2")
    assert not owns(member, f"{member}_2")
    assert not owns(member, f"x{member}")


def test_a_name_is_owned_exactly_as_it_is_written() -> None:
    assert not owns("alice", "Alice")
    assert not owns("alice", "ALICE-2")


@given(NAMES, NAMES)
def test_who_owns_a_token_is_read_from_the_sentence_that_says_so(member: str, name: str) -> None:
    problem = owner_problem(member, name)
    assert (problem is None) == owns(member, name)
    assert problem is None or member_in(problem) == member


@pytest.mark.parametrize(
    "sentence", ["", "the relay is full", "oh: this is al's token: no", "this is a b's token: no"]
)
def test_no_other_sentence_names_a_member(sentence: str) -> None:
    assert member_in(sentence) is None


def test_the_sentence_is_part_of_the_protocol() -> None:
    """Clients of earlier versions read it too."""
    assert owner_problem("al", "bob") == (
        "this is al's token: the name must be al or start with al-"
    )
