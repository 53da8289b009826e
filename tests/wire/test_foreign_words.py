"""Foreign text in errors and logs, what logs say of connections, and that they contain no secret."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from collections.abc import Callable
from typing import Any, Final

import pytest

import pulsar_nack
from pulsar_nack import BrokerError
from pulsar_nack._foreign import quoted, shown, without_credentials
from pulsar_nack.errors import UndecodableMessageError
from pulsar_nack.testing import run, virtual_time
from pulsar_nack.wire import BasicAuthentication, ClientOptions, TokenAuthentication
from pulsar_nack.wire._connection._requests import broker_error
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.for_each import for_each
from tests.wire import hostile
from tests.wire.fake_broker import Answer, FakeBroker, refuse
from tests.wire.frames import command, frame
from tests.wire.hostile import TOKEN, assert_fit, client_of

TOPIC: Final = "persistent://public/default/orders"

EVIL_TEXT: Final = "\x1b]0;owned\x07\u202e" + "x" * 1_000_000 + TOKEN


def test_foreign_text_is_cut_and_escaped() -> None:
    """O33: it is cut at 200 characters; control characters, bidirectional marks and lone surrogates are escaped."""
    assert shown("plain words, ünd more") == "plain words, ünd more"
    assert shown("\x1b[31m\n\u202e\ud800") == "\\x1b[31m\\n\\u202e\\ud800"
    assert shown(b"\xff\x00a") == "\\xff\\x00a"
    assert shown("x" * 200) == "x" * 200
    assert shown("x" * 201) == "x" * 200 + "..."
    assert shown(shown("\x00" * 1_000)) == shown("\x00" * 1_000)[:200] + "..."
    assert len(quoted("x" * 10**6)) < 200
    for text in (shown(EVIL_TEXT), quoted(EVIL_TEXT), str(broker_error(1, EVIL_TEXT)), broker_error(1, EVIL_TEXT).text):
        assert_fit(text)


SAYINGS: Final[dict[str, tuple[str, Answer]]] = {
    "a refusal": ("SUBSCRIBE", refuse("AuthorizationError", EVIL_TEXT)),
    "a refused lookup": ("LOOKUP", hostile.answers("LOOKUP_RESPONSE", response=2, error=8, message=EVIL_TEXT)),
    "no partitions": (
        "PARTITIONED_METADATA",
        hostile.answers("PARTITIONED_METADATA_RESPONSE", response=1, error=8, message=EVIL_TEXT),
    ),
    "an address": ("LOOKUP", hostile.answers("LOOKUP_RESPONSE", response=1, brokerServiceUrl=f"pulsar://{EVIL_TEXT}")),
    "no entry": ("CONNECT", refuse("AuthenticationError", f"{TOKEN} is no good: {EVIL_TEXT}")),
}


@for_each("saying", list(SAYINGS))
def test_words_of_a_broker(saying: str) -> None:
    """O33, O37: a broker's text in refusals is cut and escaped, and a token that it quotes is left out."""

    async def test() -> None:
        broker = FakeBroker()
        broker.always(*SAYINGS[saying])
        async with client_of(broker, authentication=TokenAuthentication(TOKEN)) as client:
            with pytest.raises(BrokerError) as caught:
                await client.subscribe("orders", "s")
        assert_fit(str(caught.value))
        assert TOKEN not in f"{caught.value!r} {caught.value.__dict__}"

    run(test())


@virtual_time
async def test_words_of_a_broker_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """O33, O37: logs quote the broker safely too, in later refusals and names of encryption keys."""
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    async with (
        client_of(broker, authentication=TokenAuthentication(TOKEN)) as client,
        client.subscribe("orders", "s", initial_position="earliest") as consumer,
    ):
        broker.next("SUBSCRIBE", refuse("UnknownError", f"{TOKEN}: {EVIL_TEXT}"))
        closing = command("CLOSE_CONSUMER")
        closing.close_consumer.consumer_id, closing.close_consumer.request_id = 1, 0
        closing.close_consumer.assignedBrokerServiceUrl = EVIL_TEXT
        broker.links[0].drop_consumer(1)
        broker.links[0].send(closing)
        topic.publish(b"x", encryption_keys=[pb.EncryptionKeys(key=EVIL_TEXT[:1_000], value=b"")])
        error = (await consumer.receive(timeout=60)).error
    assert isinstance(error, UndecodableMessageError)
    assert_fit(str(error))
    assert len(caplog.messages) >= 2
    for text in caplog.messages:
        assert_fit(text)
        assert TOKEN not in text


@virtual_time
async def test_what_happens_to_connections_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """O36: a lost connection and the next one log one warning each, with address and cause, for all users; counted."""
    broker = FakeBroker()
    async with client_of(broker) as client:
        assert client.statistics().connections == 0
        async with client.subscribe("a", "s"), client.subscribe("b", "s"), client.producer("c"):
            assert client.statistics().connections == 1
            broker.cut(OSError("a cable"))
            await asyncio.sleep(10)
            broker.links[0].transport.deliver(b"\0\0\0\1\xff\xff\xff\xff")
            await asyncio.sleep(10)
            found = client.statistics()
    assert (found.connections, found.connections_lost, found.reconnects, found.protocol_errors) == (1, 2, 2, 1)
    warnings = [each.getMessage() for each in caplog.records if each.name == "pulsar_nack.wire"]
    assert [text.partition(", ")[0] for text in warnings] == [
        "connection lost: pulsar://broker:6650: the connection broke: a cable",
        "pulsar://broker:6650: connected again",
        warnings[2].partition(", ")[0],
        "pulsar://broker:6650: connected again",
    ]
    assert re.match(r"connection lost: pulsar://broker:6650: frame at byte \d+: ", warnings[2])
    assert warnings[3].endswith(warnings[2].removeprefix("connection lost: "))
    assert {each.levelno for each in caplog.records} == {logging.WARNING}


@virtual_time
async def test_an_error_behind_the_decoder_names_its_frame(caplog: pytest.LogCaptureFixture) -> None:
    """O36: a frame that can be decoded and makes no sense is named by its number and kind, with the address."""
    broker = FakeBroker()
    async with client_of(broker) as client, client.subscribe("a", "s"):
        again = command("CONNECTED")
        again.connected.server_version = "twice"
        broker.links[0].send(again)
        await asyncio.sleep(10)
        assert client.statistics().protocol_errors == 1
    assert re.match(
        r"connection lost: pulsar://broker:6650: frame \d+, a command CONNECTED: .*on a connection that is open",
        caplog.messages[0],
    )


async def test_pings_and_challenges_without_end() -> None:
    """O36: pings that come together get one answer; challenges are answered ten at a time, or the connection ends."""
    broker = FakeBroker(latency=0)
    hanging = asyncio.Event()

    async def token() -> str:
        if hanging.is_set():
            await asyncio.sleep(100)
        return TOKEN

    ping = command("PING")
    ping.ping.SetInParent()
    challenge = command("AUTH_CHALLENGE")
    challenge.authChallenge.challenge.auth_method_name = "token"
    async with client_of(broker, authentication=TokenAuthentication(token)) as client, client.subscribe("a", "s"):
        broker.links[0].transport.deliver(frame(ping) * 5_000)
        await asyncio.sleep(0.05)
        assert len(broker.commands("PONG")) == 1
        hanging.set()
        broker.links[0].transport.deliver(frame(challenge) * 11)
        await asyncio.sleep(0.05)
        assert client.statistics().protocol_errors == 1
        hanging.clear()


# --- secrets ---------------------------------------------------------------------------------------------------------


@for_each(
    "url",
    [
        f"pulsar://user:{TOKEN}@host:6650",
        f"pulsar://us/er:a,{TOKEN}@host:6650",
        f"http://user:{TOKEN}@host",
        f"pulsar://host:6650/?token={TOKEN}",
        f"pulsar://host:6650#{TOKEN}",
        f" pulsar://user:{TOKEN}@host:6650",
    ],
)
def test_secrets_in_a_url(url: str) -> None:
    """O37: a URL with a password or a token is refused without quoting it."""
    with pytest.raises(pulsar_nack.InvalidArgumentError) as caught:
        pulsar_nack.connect(url)
    assert TOKEN not in f"{caught.value} {caught.value.__dict__}"
    assert TOKEN not in without_credentials(url)


def test_secrets_in_settings() -> None:
    """O37: no ``repr`` contains one, nor does the error of a setting that is not text or unknown."""
    partial = functools.partial(lambda token: token, TOKEN)
    shown_ones = [TokenAuthentication(TOKEN), TokenAuthentication(partial), BasicAuthentication("user", TOKEN)]
    shown_ones += [ClientOptions(authentication=each) for each in shown_ones[:]]
    assert TOKEN not in repr(shown_ones)
    wrong: list[Callable[[], Any]] = [
        lambda: pulsar_nack.connect("pulsar://host", authentication=TOKEN),
        lambda: pulsar_nack.connect("pulsar://host", token=TOKEN),
        lambda: BasicAuthentication(f"user:{TOKEN}", "x"),
    ]
    for make in wrong:
        with pytest.raises(pulsar_nack.InvalidArgumentError) as caught:
            make()
        assert TOKEN not in f"{caught.value} {caught.value.__dict__}"


async def test_a_token_function_that_is_wrong() -> None:
    """O37: the error of a token function that returns something else does not quote its closure."""
    partial = functools.partial(lambda _: b"", TOKEN)
    with pytest.raises(pulsar_nack.InvalidArgumentError) as caught:
        await TokenAuthentication(partial).data(None)  # type: ignore[arg-type]
    assert TOKEN not in str(caught.value)
