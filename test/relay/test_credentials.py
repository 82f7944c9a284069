"""Which tokens open the relay, and what is refused at the start."""

import hashlib
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from hoptell.errors import ConfigurationError
from hoptell.relay import credentials
from hoptell.relay.credentials import Credentials, add_member, list_members, remove_member
from hoptell.settings import RelaySettings

TOKEN = "correct-horse-battery-staple"
OTHER = "tr0ubador-and-three-more"


def sha256(token: str) -> str:
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()


def members_file(folder: Path, content: Any, *, mode: int = 0o600) -> Path:
    file = folder / "members.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    file.chmod(mode)
    return file


def load(folder: Path, content: Any = None, *, token: str | None = None) -> Credentials:
    members = None if content is None else members_file(folder, content)
    return Credentials.load(RelaySettings(token=token, members=members))


def refusal(folder: Path, content: Any = None, *, token: str | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(folder, content, token=token)
    return str(caught.value)


# What opens the relay -----------------------------------------------------------------------


def test_the_shared_token_belongs_to_no_member(tmp_path: Path) -> None:
    found = load(tmp_path, token=TOKEN).find(TOKEN)
    assert found is not None and found.member is None


@pytest.mark.parametrize(
    "stored", [TOKEN, sha256(TOKEN), sha256(TOKEN).upper(), "sha" + sha256(TOKEN).upper()[3:]]
)
def test_a_stored_token_is_the_secret_or_its_hash(tmp_path: Path, stored: str) -> None:
    found = load(tmp_path, {"alice": stored, "bob": OTHER}).find(TOKEN)
    assert found is not None and found.member == "alice"
    assert load(tmp_path, token=stored).find(TOKEN) is not None


def test_a_hash_is_not_a_secret_however_its_prefix_is_written(tmp_path: Path) -> None:
    stored = "SHA256:" + sha256(TOKEN)[7:]
    assert load(tmp_path, {"alice": stored}).find(stored) is None


def test_a_stolen_hash_is_not_a_token(tmp_path: Path) -> None:
    assert load(tmp_path, {"alice": sha256(TOKEN)}).find(sha256(TOKEN)) is None


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], TOKEN + " ", TOKEN.upper(), "\ud800", "é"])
def test_any_other_token_is_unknown(tmp_path: Path, token: str) -> None:
    assert load(tmp_path, {"alice": sha256(TOKEN)}, token=OTHER).find(token) is None


def test_shared_token_and_members_work_together(tmp_path: Path) -> None:
    both = load(tmp_path, {"alice": sha256(TOKEN)}, token=OTHER)
    assert [found.member for found in (both.find(TOKEN), both.find(OTHER)) if found] == [
        "alice",
        None,
    ]
    assert len(both.all()) == 2


def test_a_token_is_compared_in_constant_time_with_every_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []

    def compare(presented: str, stored: str) -> bool:
        assert len(presented) == len(stored) == 64
        compared.append(stored)
        return presented == stored

    monkeypatch.setattr(credentials.hmac, "compare_digest", compare)
    three = load(tmp_path, {"alice": sha256(TOKEN), "bob": OTHER}, token="the-shared-one-is-here")
    three.find("the-shared-one-is-here")
    three.find("not one of them")
    assert len(compared) == 6


def test_a_changed_token_is_another_credential(tmp_path: Path) -> None:
    before = load(tmp_path, {"alice": TOKEN}).all()
    assert load(tmp_path, {"alice": sha256(TOKEN)}).all() == before
    assert load(tmp_path, {"alice": OTHER}).all() != before


def test_no_credential_shows_its_token(tmp_path: Path) -> None:
    everything = load(tmp_path, {"alice": TOKEN}, token=OTHER)
    assert TOKEN not in repr(everything.all()) and OTHER not in repr(everything.all())


# What is refused at the start ---------------------------------------------------------------


def test_no_token_at_all_is_refused(tmp_path: Path) -> None:
    assert "set HOPTELL_TOKEN" in refusal(tmp_path)


@pytest.mark.parametrize("token", ["short", "fifteen-letters"])
def test_a_token_under_16_characters_is_refused(tmp_path: Path, token: str) -> None:
    for sentence in (refusal(tmp_path, token=token), refusal(tmp_path, {"alice": token})):
        assert "fewer than 16 characters" in sentence and "openssl rand" in sentence
        assert token not in sentence


def test_a_token_of_16_characters_is_enough(tmp_path: Path) -> None:
    assert load(tmp_path, token="sixteen-letters!").find("sixteen-letters!")


@pytest.mark.parametrize(
    "token",
    ["change-me", "change-me-to-something-long", "Change-Me-Please-Now", "replace-with-own"],
)
def test_a_placeholder_is_refused(tmp_path: Path, token: str) -> None:
    assert "placeholder" in refusal(tmp_path, token=token)
    assert "alice: the token is still a placeholder" in refusal(tmp_path, {"alice": token})


@pytest.mark.parametrize("digest", ["", "abc", "g" * 64, "a" * 63, "a" * 65, "a" * 63 + "٣"])
def test_a_hash_without_64_hex_digits_is_refused(tmp_path: Path, digest: str) -> None:
    assert "64 hex digits" in refusal(tmp_path, token=f"sha256:{digest}")
    assert "64 hex digits" in refusal(tmp_path, {"alice": f"sha256:{digest}"})


def test_a_token_that_no_client_could_send_is_refused(tmp_path: Path) -> None:
    assert "white space" in refusal(tmp_path, {"alice": f"{TOKEN}\n"})


@pytest.mark.parametrize("order", [1, -1])
def test_member_names_that_overlap_are_refused(tmp_path: Path, order: int) -> None:
    names = {"alice": TOKEN, "zoe": "the-token-of-zoe-is-this", "alice-bob": OTHER}
    sentence = refusal(tmp_path, dict(list(names.items())[::order]))
    assert "alice and alice-bob overlap" in sentence and "rename" in sentence


def test_members_with_a_common_start_do_not_overlap(tmp_path: Path) -> None:
    names = ["alice", "alice2", "alice_b", "Alice-2", "bob-2", "bob-22"]
    members = {name: f"the-secret-token-of-{name}" for name in names}
    assert len(load(tmp_path, members).all()) == len(names)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o610])
def test_a_members_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = members_file(tmp_path, {"alice": TOKEN}, mode=mode)
    with pytest.raises(ConfigurationError, match=f"run `chmod 600 {file}`"):
        Credentials.load(RelaySettings(members=file))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        f'{{"alice": "{TOKEN}"',
        f'{{"alice": "{TOKEN}",}}',
        f"alice={TOKEN}",
        "[" * 100_000,
        '{"alice": ' * 100_000,
    ],
)
def test_broken_json_is_refused_without_quoting_it(tmp_path: Path, text: str) -> None:
    sentence = refusal(tmp_path, text)
    assert "not valid JSON" in sentence
    assert TOKEN not in sentence and len(sentence) < 300


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "members.json"
    file.write_bytes(b'{"alice": "\xff\xfe"}')
    file.chmod(0o600)
    with pytest.raises(ConfigurationError, match="not valid JSON"):
        Credentials.load(RelaySettings(members=file))


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    assert load(tmp_path, "\ufeff" + json.dumps({"alice": TOKEN})).find(TOKEN)


@pytest.mark.parametrize("content", [["alice"], "null", '"alice"', "1"])
def test_json_that_is_not_an_object_is_refused(tmp_path: Path, content: Any) -> None:
    assert "one JSON object" in refusal(tmp_path, content)


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, f'{{"alice": "{TOKEN}", "alice": "{OTHER}"}}')
    assert "twice (entry 2)" in sentence


def test_a_file_without_members_is_refused_at_the_start_only(tmp_path: Path) -> None:
    assert "has no members" in refusal(tmp_path, {})
    assert "has no members" in refusal(tmp_path, {}, token=TOKEN)
    settings = RelaySettings(members=members_file(tmp_path, {}))
    assert Credentials.load(settings, allow_no_members=True).all() == frozenset()


def test_a_member_name_that_is_not_a_name_is_refused(tmp_path: Path) -> None:
    assert "entry 1: a member's name is" in refusal(tmp_path, {"al ice": TOKEN})


@pytest.mark.parametrize("token", [None, 5, ["x"], {"hash": "x"}])
def test_a_token_that_is_not_text_is_refused(tmp_path: Path, token: Any) -> None:
    assert "member alice: the token must be a string" in refusal(tmp_path, {"alice": token})


def test_a_token_on_the_name_s_side_is_not_shown(tmp_path: Path) -> None:
    assert TOKEN not in refusal(tmp_path, {TOKEN: "alice"})


def test_one_secret_for_two_is_refused(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, {"alice": TOKEN, "bob": sha256(TOKEN)})
    assert "alice" in sentence and "bob" in sentence and "same token" in sentence
    assert "HOPTELL_TOKEN and the member alice" in refusal(tmp_path, {"alice": TOKEN}, token=TOKEN)


def test_a_missing_file_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="hoptell members add NAME --file"):
        Credentials.load(RelaySettings(members=tmp_path / "none.json"))


def test_a_folder_or_a_pipe_is_not_a_members_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ConfigurationError, match="is not a file|directory"):
            Credentials.load(RelaySettings(members=path))


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    file = members_file(tmp_path, {"alice": TOKEN})
    os.truncate(file, 1 << 36)
    with pytest.raises(ConfigurationError, match="too large"):
        Credentials.load(RelaySettings(members=file))


# Editing ------------------------------------------------------------------------------------


def test_a_new_member_gets_a_token_that_opens_the_relay(tmp_path: Path) -> None:
    file = tmp_path / "members.json"
    token = add_member(file, "alice")
    found = Credentials.load(RelaySettings(members=file)).find(token)
    assert found is not None and found.member == "alice"


def test_the_file_keeps_only_the_hash_and_is_private(tmp_path: Path) -> None:
    file = tmp_path / "new" / "members.json"
    file.parent.mkdir()
    token = add_member(file, "alice")
    assert json.loads(file.read_text()) == {"alice": sha256(token)}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_editing_keeps_the_other_entries_and_tightens_the_mode(tmp_path: Path) -> None:
    file = members_file(tmp_path, {"zoe": TOKEN, "bob": sha256(OTHER)}, mode=0o644)
    add_member(file, "alice")
    remove_member(file, "bob")
    assert list(json.loads(file.read_text())) == ["zoe", "alice"]
    assert json.loads(file.read_text())["zoe"] == TOKEN
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_names_are_listed_in_order(tmp_path: Path) -> None:
    assert list_members(members_file(tmp_path, {"zoe": TOKEN, "bob": OTHER})) == ["bob", "zoe"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("bob", "bob is a member already"),
        ("bob-laptop", "bob and bob-laptop overlap"),
        ("team", "team and team-a overlap"),
        ("no name", "is not a name"),
        ("", "is not a name"),
    ],
)
def test_a_member_that_cannot_be_added_leaves_the_file_as_it_was(
    tmp_path: Path, name: str, sentence: str
) -> None:
    file = members_file(tmp_path, {"bob": TOKEN, "team-a": OTHER})
    before = file.read_bytes(), file.stat().st_ino
    with pytest.raises(ConfigurationError, match=sentence):
        add_member(file, name)
    assert (file.read_bytes(), file.stat().st_ino) == before


def test_a_member_that_is_not_there_cannot_be_removed(tmp_path: Path) -> None:
    file = members_file(tmp_path, {"bob": TOKEN})
    with pytest.raises(ConfigurationError, match="no member of that name"):
        remove_member(file, "alice")
    with pytest.raises(ConfigurationError, match="there is no members file"):
        remove_member(tmp_path / "none.json", "alice")
    assert not (tmp_path / "none.json").exists()


def test_a_broken_file_is_not_edited(tmp_path: Path) -> None:
    file = members_file(tmp_path, "{")
    for edit in (add_member, remove_member):
        with pytest.raises(ConfigurationError, match="not valid JSON"):
            edit(file, "alice")
    assert file.read_text() == "{"


def test_a_symlink_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    file = members_file(tmp_path / "real", {"bob": TOKEN})
    link = tmp_path / "link.json"
    link.symlink_to(file)
    add_member(link, "alice")
    assert link.is_symlink() and list_members(file) == ["alice", "bob"]


def test_edits_at_the_same_time_all_count(tmp_path: Path) -> None:
    file = tmp_path / "members.json"
    names = [f"member{number}" for number in range(20)]
    threads = [threading.Thread(target=add_member, args=(file, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list_members(file) == sorted(names)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ConfigurationError, match="cannot write .*Permission denied"):
            add_member(tmp_path / "members.json", "alice")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root edits other users' files")
def test_an_edit_by_root_leaves_the_file_with_its_owner(tmp_path: Path) -> None:
    file = members_file(tmp_path, {"bob": TOKEN})
    os.chown(file, 12345, 12345)
    add_member(file, "alice")
    assert (file.stat().st_uid, file.stat().st_gid) == (12345, 12345)
