"""The routing rules of docs/protocol.md, one sentence a test."""

import secrets
import uuid

import pytest
from support.core import (
    ALICE,
    BOB,
    EPOCH,
    SHARED,
    Driver,
    acks,
    closes,
    delivered,
    error,
    texts,
    written,
)

from hoptell import frames
from hoptell.errors import ProtocolError
from hoptell.relay.model import (
    Accepted,
    Close,
    Confirmed,
    Credential,
    Deliver,
    Expired,
    Forgotten,
    Known,
    Limits,
    Log,
    LoginTurnedDown,
    TurnedDown,
    Write,
)
from hoptell.settings import Rate

HOURS = 3600.0
REFERENCE = "01234567-89ab-4cde-8f01-234567890001"


def fill(driver: Driver, sender, to: str, count: int, **fields) -> list:
    """Send numbered texts; what the last one caused."""
    effects = []
    for number in range(count):
        effects = driver.send(sender, to, f"text {number}", **fields)
    return effects


def expired(driver: Driver) -> list[str]:
    """Whose deliveries were dropped at their deadline."""
    return [record.delivery.peer.name for record in driver.records if isinstance(record, Expired)]


# Login


def test_a_peer_that_logs_in_is_welcomed_by_its_name():
    driver = Driver()
    connection = driver.hello("alice")
    assert driver.take() == [Write(connection, frames.Welcome("alice"))]


def test_a_connection_without_a_hello_is_closed_4001_after_5_seconds():
    driver = Driver()
    connection = driver.open()
    assert driver.wait(4.9) == []
    assert closes(driver.wait(0.1)) == [(connection, 4001)]


def test_a_hello_in_time_is_not_closed_later():
    driver = Driver()
    connection = driver.open()
    driver.wait(4.9)
    driver.relay.login(connection, frames.Hello("alice", "t"), SHARED, now=driver.now)
    driver.take()
    assert driver.wait(60) == []


def test_an_unknown_token_is_closed_4003():
    driver = Driver()
    connection = driver.hello("alice", credential=None)
    [close] = driver.take()
    assert close == Close(connection, 4003, close.reason)
    assert "HOPTELL_TOKEN" in close.reason


def test_another_protocol_version_is_closed_4005_even_with_a_good_token():
    driver = Driver()
    connection = driver.hello("alice", v=2)
    assert closes(driver.take()) == [(connection, 4005)]


@pytest.mark.parametrize("name", ["", "-a", "a b", "a.b", "a" * 65, "ä", "a/b", "@a", "a\n"])
def test_a_bad_name_is_closed_4002(name):
    driver = Driver()
    connection = driver.hello(name)
    assert closes(driver.take()) == [(connection, 4002)]


@pytest.mark.parametrize(
    "roles", [["all"], [""], ["a b"], ["x" * 65], [f"role{n}" for n in range(17)]]
)
def test_bad_roles_are_closed_4002(roles):
    driver = Driver()
    connection = driver.hello("alice", roles=roles)
    assert closes(driver.take()) == [(connection, 4002)]


def test_16_roles_are_allowed():
    driver = Driver()
    driver.login("alice", roles=[f"role{n}" for n in range(16)])


@pytest.mark.parametrize("name", ["alice", "alice-laptop", "alice-2-x"])
def test_a_member_may_use_own_names(name):
    Driver().login(name, ALICE)


@pytest.mark.parametrize("name", ["bob", "alicex", "alice_2", "Alice"])
def test_a_member_may_not_use_other_names(name):
    driver = Driver()
    connection = driver.hello(name, ALICE)
    assert closes(driver.take()) == [(connection, 4002)]


def test_a_close_reason_fits_a_close_frame():
    driver = Driver()
    for hello in ({"v": 2**40}, {"roles": ["x" * 9000]}, {"roles": ["all"]}):
        driver.hello("alice", **hello)
    driver.hello("a" * 9000)
    driver.hello("alice", credential=None)
    driver.hello("x", Credential("m" * 64, "c" * 64))
    reasons = [effect.reason for effect in driver.take() if isinstance(effect, Close)]
    assert len(reasons) == 6
    assert all(len(reason.encode()) <= 123 for reason in reasons), reasons


def test_a_second_hello_is_an_error_and_the_connection_stays():
    driver = Driver()
    alice = driver.login("alice")
    driver.relay.receive(alice, frames.Hello("alice", "t"), now=driver.now)
    assert "logged in already" in error(driver.take())
    assert alice.state == "open"


def test_an_unreadable_frame_is_4001_before_login_and_an_error_after_it():
    driver = Driver()
    stranger = driver.open()
    driver.relay.protocol_error(stranger, ProtocolError("not JSON"), now=driver.now)
    assert closes(driver.take()) == [(stranger, 4001)]
    alice = driver.login("alice")
    driver.relay.protocol_error(alice, ProtocolError("not JSON"), 7, now=driver.now)
    assert driver.take() == [Write(alice, frames.Error("not JSON", 7))]


def test_a_newer_connection_replaces_the_older_with_4004():
    driver = Driver()
    older = driver.login("alice")
    newer = driver.hello("alice")
    assert closes(driver.take()) == [(older, 4004)]
    assert newer.state == "open"
    assert driver.send(older, "bob") == []


def test_what_the_older_connection_had_not_confirmed_goes_to_the_newer_with_the_same_ids():
    driver = Driver()
    sender = driver.login("bob")
    older = driver.login("alice")
    first = [delivered(driver.send(sender, "alice", f"text {n}"))[0] for n in range(3)]
    driver.got(older, first[1].id)
    newer = driver.hello("alice")
    effects = driver.take()
    assert delivered(effects, newer) == [first[0], first[2]]
    assert acks(driver.got(newer, first[0].id)) == ["delivered"]


def test_send_mode_evicts_nobody_and_is_not_online():
    driver = Driver()
    peer = driver.login("alice")
    sender = driver.hello("alice", mode="send")
    assert driver.take() == [Write(sender, frames.Welcome("alice"))]
    bob = driver.login("bob")
    assert [info.name for info in driver.peers(bob)] == ["alice"]
    assert delivered(driver.send(bob, "alice"), peer)


def test_at_most_10_000_names_are_known_and_the_longest_idle_makes_room():
    driver = Driver(known_names=3)
    assert Limits().known_names == 10_000
    online = driver.login("a")
    driver.close(driver.login("b"))
    driver.wait(1)
    driver.close(driver.login("c"))
    driver.login("d")
    assert [info.name for info in driver.peers(online)] == ["c", "d"]
    driver.login("c")
    refused = driver.hello("e")
    assert closes(driver.take()) == [(refused, 4002)]


def test_a_peer_offline_with_an_empty_queue_is_forgotten_after_6_hours():
    driver = Driver()
    alice = driver.login("alice")
    driver.close(driver.login("bob"))
    driver.wait(6 * HOURS - 1)
    assert [info.name for info in driver.peers(alice)] == ["bob"]
    driver.wait(1)
    assert driver.peers(alice) == []


def test_a_peer_with_a_queue_is_not_forgotten():
    driver = Driver()
    alice = driver.login("alice")
    driver.close(driver.login("bob"))
    driver.send(alice, "bob")
    driver.wait(48 * HOURS)
    assert [info.name for info in driver.peers(alice)] == ["bob"]


def test_a_transient_peer_is_forgotten_10_minutes_after_it_left_with_what_waits_for_it():
    driver = Driver()
    bob = driver.login("bob")
    for _ in range(2):  # it may come back in between
        driver.close(driver.login("bob-ask-1", transient=True))
        driver.wait(599)
    assert acks(driver.send(bob, "bob-ask-1", "too late")) == ["queued"]
    driver.wait(1)
    assert driver.peers(bob) == []
    assert expired(driver) == ["bob-ask-1"]
    assert (driver.relay._queued, driver.relay._queued_bytes) == (0, 0)
    assert "no peer named" in error(driver.send(bob, "bob-ask-1"))


def test_a_transient_peer_that_says_good_bye_is_forgotten_at_once():
    driver = Driver()
    bob = driver.login("bob")
    asking = driver.login("bob-ask-1", transient=True)
    driver.send(bob, "bob-ask-1", "just too late")
    driver.relay.closed(asking, now=driver.now, said_goodbye=True)
    assert acks(driver.take()) == ["unconfirmed"]
    assert expired(driver) == ["bob-ask-1"]
    assert "no peer named" in error(driver.send(bob, "bob-ask-1"))


def test_a_peer_that_is_not_transient_stays_known_whatever_it_says_when_it_leaves():
    driver = Driver()
    bob, alice = driver.login("bob"), driver.login("alice")
    driver.relay.closed(alice, now=driver.now, said_goodbye=True)
    assert acks(driver.send(bob, "alice")) == ["queued"]


def test_a_transient_peer_that_is_online_or_came_back_as_a_lasting_one_is_not_forgotten():
    driver = Driver()
    bob = driver.login("bob")
    driver.login("here", transient=True)
    driver.close(driver.login("back", transient=True))
    driver.close(driver.login("back"))
    driver.wait(3600)
    assert [peer.name for peer in driver.peers(bob)] == ["back", "here"]


def test_a_transient_peer_makes_room_for_a_new_name():
    driver = Driver(known_names=2)
    driver.login("bob")
    driver.close(driver.login("brief", transient=True))
    assert driver.hello("carol").state == "open"


# Direct messages


def test_a_message_to_an_online_peer_is_forwarded_at_once_and_acknowledged_when_confirmed():
    driver = Driver()
    alice, bob = driver.login("alice"), driver.login("bob", BOB)
    effects = driver.send(bob, "alice", "hello", reply_to=REFERENCE)
    [effect] = effects
    assert isinstance(effect, Deliver) and effect.connection is alice
    message = effect.delivery.frame()
    assert message == frames.Message(
        id=message.id,
        message_id=message.message_id,
        sender="bob",
        member="bob",
        host="bob-host",
        to="alice",
        text="hello",
        ts=int((driver.now + EPOCH) * 1000),
        reply_to=REFERENCE,
    )
    ack = frames.Ack(1, "delivered", message.message_id)
    assert driver.got(alice, message.id) == [Write(bob, ack)]


def test_the_shared_token_names_no_member():
    driver = Driver()
    driver.login("alice")
    [message] = delivered(driver.send(driver.login("bob"), "alice"))
    assert message.member is None


def test_references_are_uuids_and_all_ids_differ():
    driver = Driver()
    driver.login("alice")
    bob = driver.login("bob")
    messages = [delivered(driver.send(bob, "alice"))[0] for _ in range(40)]
    assert {uuid.UUID(m.message_id).version for m in messages} == {4}
    assert len({m.message_id for m in messages} | {m.id for m in messages}) == 80


def keyed(key: str = "k", *, sender: str = "bob", at: float = 0.0) -> frames.Message:
    """What alice gets of a message with a key, from a relay that has just started."""
    driver = Driver(seed=secrets.token_hex(9))
    driver.now += at
    driver.login("alice")
    return delivered(driver.send(driver.login(sender), "alice", key=key))[0]


def test_a_relay_without_memory_gives_a_repeated_key_the_ids_that_it_had():
    first, again = keyed(), keyed(at=5)
    assert (first.id, first.message_id) == (again.id, again.message_id)
    assert uuid.UUID(first.message_id).version == 8


def test_another_key_sender_or_time_makes_other_ids():
    others = [keyed("other"), keyed(sender="carol"), keyed(at=600), keyed(at=86_400)]
    assert len({m.id for m in [keyed(), *others]}) == 5
    assert len({m.message_id for m in [keyed(), *others]}) == 5


def test_a_key_that_is_used_again_after_10_minutes_makes_other_ids():
    driver = Driver()
    driver.login("alice")
    bob = driver.login("bob")
    [first] = delivered(driver.send(bob, "alice", key="nightly"))
    driver.wait(600)
    [second] = delivered(driver.send(bob, "alice", key="nightly"))
    assert first.id != second.id and first.message_id != second.message_id


def test_a_repeat_whose_key_was_forgotten_early_does_not_take_the_place_of_the_first():
    driver = Driver(keys=1)
    alice, bob = driver.login("alice"), driver.login("bob")
    for key in ("k1", "k2", "k1"):
        driver.send(bob, "alice", key=key)
    assert len(alice.in_flight) == 3


def test_the_reference_that_a_message_answers_is_passed_on_in_small_letters():
    driver = Driver()
    driver.login("alice")
    [message] = delivered(driver.send(driver.login("bob"), "alice", reply_to=REFERENCE.upper()))
    assert message.reply_to == REFERENCE


def test_after_5_seconds_without_confirmation_the_sender_hears_unconfirmed_once():
    driver = Driver()
    alice, bob = driver.login("alice"), driver.login("bob")
    [message] = delivered(driver.send(bob, "alice"))
    assert driver.wait(4.9) == []
    assert acks(driver.wait(0.1)) == ["unconfirmed"]
    assert driver.got(alice, message.id) == []


def test_unconfirmed_is_told_in_time_even_if_nothing_else_falls_due():
    driver = Driver()
    driver.login("alice")
    bob = driver.login("bob")
    driver.wait(60)
    driver.send(bob, "alice")
    assert driver.relay.next_deadline() == driver.now + 5
    assert acks(driver.wait(5)) == ["unconfirmed"]


def test_when_the_recipient_leaves_first_the_sender_hears_queued():
    driver = Driver()
    alice, bob = driver.login("alice"), driver.login("bob")
    driver.send(bob, "alice")
    assert acks(driver.close(alice)) == ["queued"]


def test_a_message_to_an_offline_peer_is_queued_and_comes_when_it_is_back():
    driver = Driver()
    bob = driver.login("bob")
    driver.close(driver.login("alice"))
    assert acks(driver.send(bob, "alice", "one")) == ["queued"]
    alice = driver.hello("alice")
    assert texts(driver.take(), alice) == ["one"]


def test_an_unknown_name_is_an_error():
    driver = Driver()
    assert "nobody" in error(driver.send(driver.login("bob"), "nobody"))


def test_sending_to_oneself_is_an_error_in_peer_and_in_send_mode():
    driver = Driver()
    assert "own name" in error(driver.send(driver.login("bob"), "bob"))
    assert "own name" in error(driver.send(driver.login("bob", mode="send"), "bob"))


@pytest.mark.parametrize("to", ["", "@", "a b", "@a b", "#room", "@@all", "a" * 65, "@" + "a" * 65])
def test_a_bad_address_is_an_error(to):
    driver = Driver()
    assert "address" in error(driver.send(driver.login("bob"), to))


def test_a_51st_message_in_flight_is_queued_and_follows_in_order():
    driver = Driver()
    alice, bob = driver.login("alice"), driver.login("bob")
    sent = [driver.send(bob, "alice", f"text {n}") for n in range(53)]
    flying = [message for effects in sent for message in delivered(effects)]
    assert len(flying) == 50 == Limits().in_flight
    assert [acks(effects) for effects in sent[50:]] == [["queued"]] * 3
    effects = driver.got(alice, flying[7].id)
    assert texts(effects) == ["text 50"] and acks(effects) == ["delivered"]


def test_nothing_overtakes_what_is_queued():
    driver = Driver(in_flight=2)
    alice, bob = driver.login("alice"), driver.login("bob")
    flying = [message for n in range(4) for message in delivered(driver.send(bob, "alice", f"{n}"))]
    driver.got(alice, flying[0].id)  # now 1 and 2 fly, 3 waits
    assert acks(driver.send(bob, "alice", "4")) == ["queued"]
    seen = []
    while driver.relay._peers["alice"].queue:
        seen += texts(driver.got(alice, next(iter(alice.in_flight))))
    assert seen == ["3", "4"]


def test_a_message_sent_while_the_peer_comes_online_comes_after_the_queued_ones():
    driver = Driver(in_flight=2)
    bob = driver.login("bob")
    driver.close(driver.login("alice"))
    fill(driver, bob, "alice", 3)
    alice = driver.hello("alice")
    driver.send(bob, "alice", "text 3")
    order = []
    while alice.in_flight:
        delivery = next(iter(alice.in_flight.values()))
        order.append(delivery.message.text)
        driver.got(alice, delivery.id)
    assert order == ["text 0", "text 1", "text 2", "text 3"]


def test_a_51st_queued_message_for_one_peer_is_an_error_and_not_taken():
    driver = Driver()
    bob = driver.login("bob")
    driver.close(driver.login("alice"))
    assert acks(fill(driver, bob, "alice", 50)) == ["queued"]
    assert Limits().queued_per_peer == 50
    assert "alice has 50 messages waiting" in error(driver.send(bob, "alice", "too many"))
    alice = driver.hello("alice")
    assert texts(driver.take(), alice) == [f"text {n}" for n in range(50)]


def test_the_whole_relay_queues_at_most_2000():
    driver = Driver(queued_per_peer=10_000)
    assert Limits().queued == 2000
    bob = driver.login("bob")
    driver.close(driver.login("alice"))
    driver.close(driver.login("carol"))
    fill(driver, bob, "alice", 1999)
    assert acks(driver.send(bob, "carol")) == ["queued"]
    assert "queues are full" in error(driver.send(bob, "carol"))


def test_the_whole_relay_queues_at_most_64_mib_of_text_in_utf_8():
    driver = Driver(queued_bytes=10)
    assert Limits().queued_bytes == 64 * 1024 * 1024
    bob = driver.login("bob")
    driver.close(driver.login("alice"))
    driver.send(bob, "alice", "äöü")  # 6 bytes
    assert "queues are full" in error(driver.send(bob, "alice", "hello"))
    assert acks(driver.send(bob, "alice", "four")) == ["queued"]
    driver.login("alice")
    driver.close(driver.login("carol"))
    assert acks(driver.send(bob, "carol", "0123456789")) == ["queued"]


def test_unconfirmed_deliveries_return_to_the_front_in_the_old_order_even_when_the_queue_is_full():
    driver = Driver(in_flight=3, queued_per_peer=2)
    alice, bob = driver.login("alice"), driver.login("bob")
    fill(driver, bob, "alice", 5)
    driver.close(alice)
    assert "alice has 5 messages waiting" in error(driver.send(bob, "alice"))
    alice = driver.hello("alice")
    effects = driver.take()
    for delivery in list(alice.in_flight.values()):
        effects += driver.got(alice, delivery.id)
    assert texts(effects, alice) == [f"text {n}" for n in range(5)]


def test_a_redelivery_has_the_same_id():
    driver = Driver()
    alice, bob = driver.login("alice"), driver.login("bob")
    first = delivered(driver.send(bob, "alice"))
    driver.close(alice)
    alice = driver.hello("alice")
    assert delivered(driver.take(), alice) == first


def test_confirming_twice_or_an_unknown_delivery_changes_nothing():
    driver = Driver()
    alice, bob = driver.login("alice"), driver.login("bob")
    [message] = delivered(driver.send(bob, "alice"))
    assert driver.got(bob, message.id) == []
    assert len(driver.got(alice, message.id)) == 1
    assert driver.got(alice, message.id) == []
    assert driver.got(alice, "no such id") == []


def test_an_acknowledgement_for_a_sender_that_left_goes_nowhere():
    driver = Driver()
    alice, bob = driver.login("alice"), driver.login("bob")
    [message] = delivered(driver.send(bob, "alice"))
    driver.close(bob)
    assert driver.got(alice, message.id) == []


def test_a_one_shot_sender_that_no_peer_is_named_after_is_marked_no_reply():
    driver = Driver()
    driver.login("alice")
    script = driver.login("script", mode="send")
    assert delivered(driver.send(script, "alice"))[0].no_reply
    driver.login("script")
    assert not delivered(driver.send(script, "alice"))[0].no_reply
    assert not delivered(driver.send(driver.login("bob"), "alice"))[0].no_reply


# Fan-out


def test_all_reaches_every_online_peer_but_the_sender_with_one_reference():
    driver = Driver()
    bob = driver.login("bob")
    others = [driver.login(name) for name in ("x", "y", "z")]
    driver.close(driver.login("offline"))
    driver.login("one-shot", mode="send")
    effects = driver.send(bob, "@all", "hello")
    messages = delivered(effects)
    assert [e.connection for e in effects if isinstance(e, Deliver)] == others
    assert len({m.message_id for m in messages}) == 1 and len({m.id for m in messages}) == 3
    ack = frames.Ack(1, "fanout", messages[0].message_id, count=3, skipped=[])
    assert written(effects) == [ack]
    assert effects[-1] == Write(bob, ack)


def test_a_role_reaches_those_who_announced_it_at_their_latest_login():
    driver = Driver()
    bob = driver.login("bob", roles=["reviewer"])
    driver.login("x", roles=["reviewer", "backend"])
    driver.login("y", roles=["reviewer"])
    driver.login("y", roles=["backend"])
    assert [m.to for m in delivered(driver.send(bob, "@reviewer"))] == ["@reviewer"]
    effects = driver.send(bob, "@backend")
    assert [e.connection.name for e in effects if isinstance(e, Deliver)] == ["x", "y"]


def test_a_fan_out_that_reaches_nobody_is_an_error():
    driver = Driver()
    bob = driver.login("bob", roles=["reviewer"])
    driver.close(driver.login("x", roles=["reviewer"]))
    assert "@reviewer" in error(driver.send(bob, "@reviewer"))
    assert "@all" in error(driver.send(bob, "@all"))
    assert "@none" in error(driver.send(bob, "@none"))


def test_a_fan_out_that_would_reach_nobody_is_refused_whole():
    driver = Driver(in_flight=1, queued_per_peer=1)
    bob = driver.login("bob")
    for name in ("alice", "carol"):
        driver.login(name)
        fill(driver, bob, name, 2)
    driver.records.clear()
    assert "wait already for everybody who is online as @all" in error(driver.send(bob, "@all"))
    assert [r.reason for r in driver.records if isinstance(r, TurnedDown)] == ["full"]
    assert not any(isinstance(record, Accepted) for record in driver.records)


def test_a_busy_recipient_of_a_fan_out_gets_it_queued_and_a_full_one_is_named_in_skipped():
    driver = Driver(in_flight=1, queued_per_peer=1)
    bob = driver.login("bob")
    for name in ("z-full", "busy", "a-full", "free"):
        driver.login(name)
    driver.send(bob, "busy", "1")
    for name in ("z-full", "a-full"):
        fill(driver, bob, name, 2)
    effects = driver.send(bob, "@all", "news")
    assert [e.connection.name for e in effects if isinstance(e, Deliver)] == ["free"]
    [ack] = written(effects)
    assert (ack.count, ack.skipped) == (2, ["a-full", "z-full"])


# Idempotency keys


def test_a_repeat_with_the_same_key_is_answered_with_the_first_ones_ack_and_delivered_once():
    driver = Driver()
    alice, bob = driver.login("alice"), driver.login("bob")
    [message] = delivered(driver.send(bob, "alice", key="k1"))
    [ack] = written(driver.got(alice, message.id))
    assert driver.send(bob, "alice", key="k1") == [Write(bob, ack)]
    bob = driver.login("bob")
    assert driver.send(bob, "alice", key="k1") == [Write(bob, ack)]
    assert delivered(driver.send(bob, "alice", key="k2"))


def test_a_repeat_while_the_first_is_in_flight_hears_when_it_is_confirmed():
    driver = Driver()
    alice, bob = driver.login("alice"), driver.login("bob")
    [message] = delivered(driver.send(bob, "alice", key="k"))
    driver.close(bob)
    bob = driver.login("bob")
    assert driver.send(bob, "alice", key="k") == []
    assert written(driver.got(alice, message.id)) == [
        frames.Ack(1, "delivered", message.message_id)
    ]


def test_the_same_key_from_another_name_is_another_message():
    driver = Driver()
    driver.login("alice")
    assert delivered(driver.send(driver.login("bob"), "alice", key="k"))
    assert delivered(driver.send(driver.login("carol"), "alice", key="k"))


def test_a_repeated_fan_out_and_queued_message_are_not_sent_again():
    driver = Driver()
    bob = driver.login("bob")
    driver.login("alice")
    driver.close(driver.login("carol"))
    for to in ("@all", "carol"):
        first = written(driver.send(bob, to, key=to))
        assert written(driver.send(bob, to, key=to)) == first
    assert driver.relay._queued == 1


def test_what_was_withdrawn_is_accepted_when_it_is_repeated():
    driver = Driver()
    driver.login("alice")
    bob = driver.login("bob")
    driver.send(bob, "alice", key="k")
    [accepted] = [record for record in driver.records if isinstance(record, Accepted)]
    driver.relay.withdraw(accepted, "the disk is full", now=driver.now)
    assert error(driver.take()) == "the disk is full"
    assert delivered(driver.send(bob, "alice", key="k"))


def test_a_fan_out_is_answered_as_before_once_it_was_confirmed():
    driver = Driver()
    alice, bob = driver.login("alice"), driver.login("bob")
    effects = driver.send(bob, "@all", key="k")
    [message], first = delivered(effects), written(effects)
    assert driver.got(alice, message.id) == []
    assert written(driver.send(bob, "@all", key="k")) == first


def test_what_was_unconfirmed_is_answered_as_before_once_it_was_confirmed():
    driver = Driver()
    alice, bob = driver.login("alice"), driver.login("bob")
    [message] = delivered(driver.send(bob, "alice", key="k"))
    first = written(driver.wait(5))
    assert [ack.state for ack in first] == ["unconfirmed"]
    assert driver.got(alice, message.id) == []
    assert written(driver.send(bob, "alice", key="k")) == first


def test_what_was_queued_is_answered_as_before_once_it_was_confirmed():
    driver = Driver()
    bob = driver.login("bob")
    driver.close(driver.login("alice"))
    first = written(driver.send(bob, "alice", key="k"))
    alice = driver.login("alice")
    assert driver.got(alice, next(iter(alice.in_flight))) == []
    assert written(driver.send(bob, "alice", key="k")) == first


def test_a_key_is_recognized_for_10_minutes():
    driver = Driver()
    bob = driver.login("bob")
    driver.close(driver.login("alice"))
    driver.send(bob, "alice", key="k")
    driver.wait(599)
    driver.send(bob, "alice", key="k")
    assert driver.relay._queued == 1
    driver.wait(1)
    driver.send(bob, "alice", key="k")
    assert driver.relay._queued == 2
    driver.wait(600)
    assert not driver.relay._keys


def test_a_refused_send_does_not_use_up_its_key():
    driver = Driver()
    bob = driver.login("bob")
    error(driver.send(bob, "alice", key="k"))
    driver.login("alice")
    assert delivered(driver.send(bob, "alice", key="k"))


def test_a_repeat_is_answered_even_over_the_rate():
    driver = Driver(rate=Rate(1, 10))
    bob = driver.login("bob")
    driver.close(driver.login("alice"))
    driver.send(bob, "alice", key="k")
    assert acks(driver.send(bob, "alice", key="k")) == ["queued"]


def test_at_most_16_repeats_wait_for_one_acknowledgement_and_the_rest_is_refused():
    driver = Driver()
    alice, bob = driver.login("alice"), driver.login("bob")
    driver.send(bob, "alice", key="k")
    for _ in range(15):
        assert driver.send(bob, "alice", key="k") == []
    assert "wait for its acknowledgement" in error(driver.send(bob, "alice", key="k"))
    assert len(acks(driver.got(alice, next(iter(alice.in_flight))))) == 16


def test_a_sender_that_comes_back_again_and_again_may_repeat_each_time():
    driver = Driver()
    alice = driver.login("alice")
    for _ in range(40):
        bob = driver.login("bob")
        assert written(driver.send(bob, "alice", key="k")) == []
        driver.close(bob)
    bob = driver.login("bob")
    driver.send(bob, "alice", key="k")
    assert acks(driver.got(alice, next(iter(alice.in_flight)))) == ["delivered"]


@pytest.mark.parametrize("key", ["", "k" * 65, "a\nb", "a\x00"])
def test_a_key_that_is_not_1_to_64_printable_characters_is_an_error(key):
    driver = Driver()
    driver.login("alice")
    assert "key" in error(driver.send(driver.login("bob"), "alice", key=key))


def test_remembered_keys_are_bounded_and_the_oldest_goes_first():
    driver = Driver(keys=2)
    driver.close(driver.login("alice"))
    bob = driver.login("bob")
    for key in ("k1", "k2", "k3"):
        driver.send(bob, "alice", key=key)
    assert [key for _, key in driver.relay._keys] == ["k2", "k3"]


# TTL


def test_a_delivery_still_queued_at_its_deadline_is_dropped_and_logged():
    driver = Driver()
    bob = driver.login("bob")
    driver.close(driver.login("alice"))
    [ack] = written(driver.send(bob, "alice", "brief", ttl=60))
    assert ack.expires == int((driver.now + EPOCH) * 1000) + 60_000
    driver.send(bob, "alice", "lasting")
    driver.wait(60.1)
    assert expired(driver) == ["alice"]
    alice = driver.hello("alice")
    assert texts(driver.take(), alice) == ["lasting"]


def test_a_delivery_in_flight_is_not_taken_back_at_its_deadline():
    driver = Driver()
    alice, bob = driver.login("alice"), driver.login("bob")
    [message] = delivered(driver.send(bob, "alice", ttl=1))
    driver.wait(10)
    assert message.id in alice.in_flight
    assert acks(driver.close(alice)) == []  # it was unconfirmed long ago
    driver.wait(0.1)
    assert expired(driver) == ["alice"]


def test_a_deadline_that_passed_while_the_clock_was_set_is_kept():
    driver = Driver()
    bob = driver.login("bob")
    driver.close(driver.login("alice"))
    driver.send(bob, "alice", ttl=3600)
    driver.relay.epoch += 3601
    driver.wait(0.1)
    assert expired(driver) == ["alice"]


@pytest.mark.parametrize("ttl", [0, -1, 604_801])
def test_a_ttl_is_1_to_604800_whole_seconds(ttl):
    driver = Driver()
    driver.login("alice")
    bob = driver.login("bob")
    assert "604800" in error(driver.send(bob, "alice", ttl=ttl))
    assert delivered(driver.send(bob, "alice", ttl=604_800))
    assert delivered(driver.send(bob, "alice", ttl=1))


def test_stale_deadlines_do_not_pile_up_behind_one_that_is_not():
    driver = Driver()
    bob = driver.login("bob")
    driver.close(driver.login("carol"))
    driver.send(bob, "carol", ttl=500_000)  # before all others: none of them is at the front
    driver.close(driver.login("alice"))
    for _ in range(300):
        driver.send(bob, "alice", ttl=600_000)
        alice = driver.login("alice")
        driver.got(alice, next(iter(alice.in_flight)))
        driver.close(alice)
        driver.wait(6)  # the hello was due: there is a tick
    assert len(driver.relay._deadlines) <= 2 * 1 + 64 + 1
    driver.wait(500_000)
    assert expired(driver) == ["carol"]


def test_deadlines_do_not_pile_up_when_a_peer_comes_and_goes():
    driver = Driver()
    bob = driver.login("bob")
    driver.close(driver.login("alice"))
    fill(driver, bob, "alice", 50, ttl=600)
    for _ in range(20):
        driver.close(driver.login("alice"))
    assert len(driver.relay._deadlines) == 50
    driver.wait(601)
    assert expired(driver) == ["alice"] * 50 and not driver.relay._deadlines


def test_a_delivery_that_left_the_queue_and_came_back_still_has_its_deadline():
    driver = Driver()
    bob = driver.login("bob")
    driver.close(driver.login("alice"))
    driver.send(bob, "alice", "brief", ttl=1)
    alice = driver.login("alice")
    driver.wait(2)  # it is in flight at its deadline
    assert not driver.relay._deadlines
    driver.close(alice)
    driver.wait(0.1)
    assert expired(driver) == ["alice"]


def test_a_peer_whose_last_message_expired_is_forgotten_6_hours_later():
    driver = Driver()
    bob = driver.login("bob")
    driver.close(driver.login("alice"))
    driver.send(bob, "alice", ttl=3600)
    driver.wait(7 * HOURS - 2)
    assert [info.name for info in driver.peers(bob)] == ["alice"]
    driver.wait(3)
    assert driver.peers(bob) == []


# Rate


def test_30_sends_in_10_seconds_are_allowed_and_the_31st_is_told_when_to_try_again():
    driver = Driver(rate=Rate())
    driver.login("alice")
    bob = driver.login("bob")
    for _ in range(30):
        assert delivered(driver.send(bob, "alice"))
    assert "try again in 10 s" in error(driver.send(bob, "alice"))
    assert bob.state == "open"


def test_a_peer_that_waits_as_told_is_let_through():
    driver = Driver(rate=Rate())
    driver.login("alice")
    bob = driver.login("bob")
    fill(driver, bob, "alice", 31)
    driver.wait(10)
    assert not any(isinstance(f, frames.Error) for f in written(driver.send(bob, "alice")))


def test_refused_sends_count_against_the_rate_and_list_does_not():
    driver = Driver(rate=Rate(3, 10))
    driver.login("alice")
    bob = driver.login("bob")
    for _ in range(10):
        driver.peers(bob)
    for _ in range(3):
        assert "own name" in error(driver.send(bob, "bob"))
    assert "too many" in error(driver.send(bob, "alice"))


def test_what_was_sent_over_the_rate_counts_too_so_that_hammering_does_not_help():
    driver = Driver(rate=Rate(2, 10))
    driver.login("alice")
    bob = driver.login("bob")
    fill(driver, bob, "alice", 2)
    driver.wait(5)
    for _ in range(2):
        assert "too many" in error(driver.send(bob, "alice"))
    driver.wait(6)
    assert "too many" in error(driver.send(bob, "alice"))
    driver.wait(10)
    assert delivered(driver.send(bob, "alice"))


def test_the_rate_is_that_of_the_name_over_all_its_connections():
    driver = Driver(rate=Rate(2, 10))
    driver.login("alice")
    driver.send(driver.login("bob"), "alice")
    driver.send(driver.login("bob", mode="send"), "alice")
    assert "too many" in error(driver.send(driver.login("bob"), "alice"))


def test_idle_rate_windows_are_forgotten():
    driver = Driver(rate=Rate())
    driver.login("alice")
    driver.send(driver.login("bob"), "alice")
    driver.wait(30)
    assert not driver.relay._rate._attempts


# Texts


@pytest.mark.parametrize("text", ["", " ", "\n\t ", "\u2003"])
def test_a_text_of_only_white_space_is_an_error(text):
    driver = Driver()
    driver.login("alice")
    assert "empty" in error(driver.send(driver.login("bob"), "alice", text))


def test_100_000_characters_are_allowed_and_one_more_is_an_error():
    driver = Driver()
    driver.login("alice")
    bob = driver.login("bob")
    assert delivered(driver.send(bob, "alice", "😀" * 100_000))
    assert "100,001" in error(driver.send(bob, "alice", "x" * 100_001))


@pytest.mark.parametrize("reference", ["", "abc", "x" * 36, REFERENCE + "0"])
def test_a_reply_to_that_is_no_reference_is_an_error(reference):
    driver = Driver()
    driver.login("alice")
    assert "reference" in error(driver.send(driver.login("bob"), "alice", reply_to=reference))


# List


def test_list_names_every_known_peer_but_the_one_who_asks_sorted_by_name():
    driver = Driver()
    bob = driver.login("bob")
    driver.login("zoe", roles=["r2", "r1", "r2"], wake="hook")
    driver.close(driver.login("alice", wake="<script>"))
    driver.send(bob, "alice")
    assert driver.peers(bob) == [
        frames.PeerInfo("alice", "alice-host", [], False, 1),
        frames.PeerInfo("zoe", "zoe-host", ["r2", "r1"], True, 0, "hook"),
    ]


# Reload


def test_a_revoked_credential_loses_its_connections_at_once_with_4003():
    driver = Driver()
    alice, bob = driver.login("alice", ALICE), driver.login("bob", BOB)
    one_shot = driver.login("alice-ci", ALICE, mode="send")
    driver.relay.reload({BOB, SHARED}, now=driver.now)
    assert closes(driver.take()) == [(alice, 4003), (one_shot, 4003)]
    assert driver.send(one_shot, "bob") == []
    assert acks(driver.send(bob, "alice")) == ["queued"]


def test_nothing_is_sent_to_a_revoked_connection_when_another_revoked_one_ends():
    driver = Driver()
    driver.login("bob", BOB)
    alice = driver.login("alice", ALICE)
    driver.send(alice, "bob")
    driver.relay.reload(set(), now=driver.now)
    assert all(isinstance(effect, Close) for effect in driver.take())


def test_a_changed_token_is_another_credential():
    driver = Driver()
    alice = driver.login("alice", ALICE)
    driver.relay.reload({Credential("alice", "9" * 64)}, now=driver.now)
    assert closes(driver.take()) == [(alice, 4003)]


# Effects and logs


def test_a_refused_send_leaves_no_trace():
    driver = Driver()
    bob = driver.login("bob")
    driver.close(driver.login("alice"))
    before = (driver.relay._queued, len(driver.relay._awaiting))
    error(driver.send(bob, "alice", ttl=0))
    error(driver.send(bob, "nobody"))
    assert before == (driver.relay._queued, len(driver.relay._awaiting))


def test_no_log_line_holds_a_token_or_a_text():
    driver = Driver()
    driver.login("alice")
    bob = driver.login("bob")
    driver.send(bob, "alice", "very secret text")
    driver.send(bob, "@all", "very secret text")
    driver.hello("eve", credential=None)
    driver.take()
    logged = (Log, TurnedDown, LoginTurnedDown)
    logs = repr([record for record in driver.records if isinstance(record, logged)])
    assert "LoginTurnedDown" in logs
    assert "secret" not in logs and "a token" not in logs


def test_what_a_journal_must_keep_comes_before_anybody_hears_of_it():
    driver = Driver()
    driver.login("alice")
    bob = driver.login("bob")
    driver.relay.receive(bob, frames.Send(1, "@all", "hi", key="k"), now=driver.now)
    accepted, deliver, _ack = driver.relay.take_effects()
    assert isinstance(accepted, Accepted) and isinstance(deliver, Deliver)
    assert accepted.deliveries == [deliver.delivery] and accepted.key == "k"
    assert accepted.receipt is deliver.delivery.receipt and not accepted.receipt.durable


def test_what_a_journal_may_forget_is_told_once():
    driver = Driver()
    alice, bob = driver.login("alice"), driver.login("bob")
    [message] = delivered(driver.send(bob, "alice"))
    driver.got(alice, message.id)
    driver.got(alice, message.id)
    driver.close(alice)
    driver.wait(7 * HOURS)
    known, _, accepted, confirmed, forgotten = (
        record for record in driver.records if not isinstance(record, Log)
    )
    assert isinstance(known, Known) and known.peer.name == "alice"
    assert isinstance(confirmed, Confirmed) and (confirmed.delivery,) == accepted.deliveries
    assert forgotten == Forgotten("alice")


def test_closing_is_idempotent_and_a_closed_connection_is_deaf():
    driver = Driver()
    bob = driver.login("bob")
    driver.close(bob)
    assert driver.close(bob) == []
    assert driver.send(bob, "alice") == []
    driver.relay.login(bob, frames.Hello("bob", "t"), SHARED, now=driver.now)
    assert driver.take() == []
