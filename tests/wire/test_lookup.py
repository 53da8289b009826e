"""Lookups and pools on a scripted cluster: redirects, proxies, several addresses, and one connection for all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product

import pytest

from pulsar_nack.errors import (
    BrokerError,
    BrokerRefusedError,
    ClosedError,
    ConnectionLostError,
    ProtocolError,
    RequestTimeoutError,
)
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire._connection._context import ClientContext
from pulsar_nack.wire._connection._options import ClientOptions
from pulsar_nack.wire._connection._pool import Pool
from pulsar_nack.wire._connection._requests import is_transient
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.wire.fake_broker import URL, Answer, FakeBroker, cut, found_at, half, raw, redirect, refuse, silence

TOPIC = "persistent://public/default/t"
SECOND, THIRD = "pulsar://second:6650", "pulsar://third:6650"


def cluster() -> FakeBroker:
    """Return a cluster of three nodes."""
    broker = FakeBroker()
    broker.node(SECOND)
    broker.node(THIRD)
    return broker


def client(broker: FakeBroker, url: str = URL, options: ClientOptions | None = None) -> tuple[Pool, ClientContext]:
    """Return a pool whose first address is used first, and a lookup on it."""
    pool = Pool(url, options, dial=broker.dial, choose=lambda _: 0)
    return pool, ClientContext(pool)


@virtual_time
async def test_finds_the_broker_of_a_topic() -> None:
    """The node of a topic is connected to; for a topic of the node that answered, the connection is reused."""
    broker = cluster()
    broker.topic(TOPIC).owner = SECOND
    pool, lookup = client(broker)
    assert (await lookup.broker(TOPIC)).address.url == SECOND
    assert (await lookup.broker("persistent://public/default/other")).address.url == URL
    assert broker.dialled == [URL, SECOND]
    await pool.aclose()
    assert broker.links == []
    assert len(asyncio.all_tasks()) == 1


@virtual_time
async def test_redirects_are_followed() -> None:
    """Each redirect's target is asked, with the redirect's authority."""
    broker = cluster()
    broker.next("LOOKUP", redirect(SECOND), redirect(THIRD, authoritative=True), found_at(SECOND))
    pool, lookup = client(broker)
    assert (await lookup.broker(TOPIC)).address.url == SECOND
    asked = [(call.link.node.url, call.body.authoritative) for call in broker.calls if call.kind == "LOOKUP"]
    assert asked == [(URL, False), (SECOND, False), (THIRD, True)]
    await pool.aclose()


@virtual_time
async def test_redirects_end() -> None:
    """A circle of redirects is given up after the limit, with its last address."""
    broker = cluster()
    broker.always("LOOKUP", redirect(SECOND))
    pool, lookup = client(broker, options=ClientOptions(max_redirects=5))
    with pytest.raises(BrokerError, match=r"more than 5 redirects, the last one to pulsar://second:6650"):
        await lookup.broker(TOPIC)
    assert len(broker.commands("LOOKUP")) == 6
    await pool.aclose()


@virtual_time
async def test_through_a_proxy() -> None:
    """A proxy is dialled once for each broker behind it, and CONNECT names the broker."""
    broker = FakeBroker()
    broker.always("LOOKUP", found_at("pulsar://inside:6650", through_proxy=True))
    pool, lookup = client(broker)
    connection = await lookup.broker(TOPIC)
    assert broker.dialled == [URL, URL]
    assert [each.proxy_to_broker_url for each in broker.commands("CONNECT")] == ["", "inside:6650"]
    assert await lookup.broker(TOPIC) is connection
    assert broker.dialled == [URL, URL]
    await pool.aclose()


@virtual_time
async def test_redirects_behind_a_proxy() -> None:
    """Redirects of a proxy lead through it too."""
    broker = FakeBroker()
    broker.next(
        "LOOKUP", redirect("pulsar://one:6650", through_proxy=True), found_at("pulsar://two:6650", through_proxy=True)
    )
    pool, lookup = client(broker)
    await lookup.broker(TOPIC)
    assert [each.proxy_to_broker_url for each in broker.commands("CONNECT")] == ["", "one:6650", "two:6650"]
    await pool.aclose()


@virtual_time
async def test_refused_lookups() -> None:
    """The broker's error is raised, and marked as transient or not."""
    broker = cluster()
    broker.next("LOOKUP", refuse("ServiceNotReady", "not yet"), refuse("AuthorizationError", "not you"))
    pool, lookup = client(broker)
    with pytest.raises(BrokerRefusedError, match="ServiceNotReady: not yet") as caught:
        await lookup.broker(TOPIC)
    assert is_transient(caught.value)
    with pytest.raises(BrokerRefusedError, match="AuthorizationError: not you") as caught:
        await lookup.broker(TOPIC)
    assert not is_transient(caught.value)
    await pool.aclose()


@virtual_time
async def test_every_refusal() -> None:
    """Every refusal of every request arrives with its name and text, and the connection stays."""
    broker = FakeBroker()
    pool, lookup = client(broker)
    questions: dict[str, Callable[[], Awaitable[object]]] = {
        "LOOKUP": lambda: lookup.broker(TOPIC),
        "PARTITIONED_METADATA": lambda: lookup.partitions(TOPIC),
        "GET_TOPICS_OF_NAMESPACE": lambda: lookup.topics("public/default"),
    }
    for code, kind in product(pb.ServerError.keys(), questions):
        broker.next(kind, refuse(code, f"no to {kind}"))
        with pytest.raises(BrokerRefusedError, match=rf"{code}: no to {kind}") as caught:
            await questions[kind]()
        assert (caught.value.code, caught.value.text) == (code, f"no to {kind}")
    assert broker.dialled == [URL]
    await pool.aclose()


@pytest.mark.parametrize(
    "answer", [cut, half(), half(share=0.0), raw(b"\xff" * 64)], ids=["cut", "half", "byte", "noise"]
)
@virtual_time
async def test_broken_answers(answer: Answer) -> None:
    """An end, a partial answer, or noise instead raises at once, and the next request works."""
    broker = FakeBroker()
    pool, lookup = client(broker)
    broker.next("LOOKUP", answer)
    with pytest.raises((ConnectionLostError, ProtocolError)):
        await lookup.broker(TOPIC)
    assert asyncio.get_running_loop().time() < 0.1
    assert (await lookup.broker(TOPIC)).is_open
    await pool.aclose()


@virtual_time
async def test_an_answer_without_an_address() -> None:
    """A broker without an address of our kind is named, and nothing is dialled."""
    broker = FakeBroker()
    broker.always("LOOKUP", found_at("pulsar+ssl://inside:6651"))
    pool, lookup = client(broker)
    with pytest.raises(ConnectionLostError, match="has no address without TLS"):
        await lookup.broker(TOPIC)
    await pool.aclose()


@virtual_time
async def test_several_addresses() -> None:
    """One of several addresses is used while it works, then the next; without one left the last error is raised."""
    broker = cluster()
    pool, lookup = client(broker, "pulsar://broker:6650,second:6650,third:6650")
    assert (await pool.service()).address.url == URL
    broker.node(URL).kill()
    await asyncio.sleep(0.1)
    assert (await pool.service()).address.url == SECOND
    broker.node(URL).start()
    assert (await pool.service()).address.url == SECOND
    for url in (URL, SECOND, THIRD):
        broker.node(url).kill()
    await asyncio.sleep(0.1)
    with pytest.raises(ConnectionLostError, match="not reached"):
        await lookup.partitions(TOPIC)
    assert broker.dialled[-3:] == [SECOND, THIRD, URL]
    await pool.aclose()


@virtual_time
async def test_another_cluster_that_is_down() -> None:
    """Calls for it fail, and do not change which of the client's own addresses is tried next."""
    broker = cluster()
    pool, _ = client(broker, "pulsar://broker:6650,second:6650")
    broker.node(URL).hangs = True
    broker.node(THIRD).kill()
    finding = asyncio.create_task(pool.service())
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="third"):
            await pool.service(THIRD)
    assert (await finding).address.url == SECOND
    assert (await pool.service()).address.url == SECOND
    await pool.aclose()


@virtual_time
async def test_another_cluster_of_which_an_address_does_not_work() -> None:
    """The next address is used, as in the client's own cluster."""
    broker = cluster()
    pool, lookup = client(broker)
    url = "pulsar://second:6650,third:6650"
    broker.next("LOOKUP", refuse("ServiceNotReady"))
    with pytest.raises(BrokerRefusedError):
        await lookup.broker(TOPIC, url)
    assert (await pool.service(url)).address.url == THIRD
    assert (await pool.service()).address.url == URL
    await pool.aclose()


@virtual_time
async def test_an_address_that_does_not_answer() -> None:
    """A node that does not answer a request is not asked the next one."""
    broker = cluster()
    broker.next("PARTITIONED_METADATA", silence)
    pool, lookup = client(broker, "pulsar://broker:6650,second:6650", ClientOptions(request_timeout=3))
    with pytest.raises(RequestTimeoutError):
        await lookup.partitions(TOPIC)
    assert await lookup.partitions(TOPIC) == 0
    assert broker.calls[-1].link.node.url == SECOND
    await pool.aclose()


@virtual_time
async def test_partitions() -> None:
    """The broker's number of partitions is returned; its refusals are raised, and so is a lost connection."""
    broker = FakeBroker()
    broker.partitions[TOPIC] = 12
    pool, lookup = client(broker)
    assert await lookup.partitions(TOPIC) == 12
    assert await lookup.partitions("persistent://public/default/plain") == 0
    broker.next("PARTITIONED_METADATA", refuse("TopicNotFound", "no such topic"), cut)
    with pytest.raises(BrokerRefusedError, match="TopicNotFound"):
        await lookup.partitions(TOPIC)
    with pytest.raises(ConnectionLostError):
        await lookup.partitions(TOPIC)
    assert await lookup.partitions(TOPIC) == 12
    await pool.aclose()


@virtual_time
async def test_topics_of_a_namespace() -> None:
    """All persistent topics of a namespace are found."""
    broker = FakeBroker()
    names = [f"persistent://public/default/{name}" for name in ("orders", "orders-dlq", "bills-partition-0")]
    for name in (*names, "non-persistent://public/default/ticks", "persistent://public/other/orders"):
        broker.topic(name)
    pool, lookup = client(broker)
    assert await lookup.topics("public/default") == names
    await pool.aclose()


@virtual_time
async def test_one_connection_for_all() -> None:
    """Callers that need the same broker at once share one attempt; a cancelled caller does not stop the others."""
    broker = FakeBroker()
    pool, _ = client(broker)
    tasks = [asyncio.create_task(pool.get(URL)) for _ in range(5)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    got = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(got[0], asyncio.CancelledError)
    assert len(set(got[1:])) == 1
    assert broker.dialled == [URL]
    await pool.aclose()


@virtual_time
async def test_an_attempt_that_is_cancelled_before_it_begins() -> None:
    """Its callers get an error, and the next call makes another attempt."""
    broker = FakeBroker()
    pool, _ = client(broker)
    waiting = asyncio.create_task(pool.get(URL))
    await asyncio.sleep(0)
    (attempt,) = (task for task in asyncio.all_tasks() if "connecting" in task.get_name())
    attempt.cancel()
    with pytest.raises(ConnectionLostError, match="cancelled"):
        await waiting
    assert (await pool.get(URL)).is_open
    assert broker.dialled == [URL]
    await pool.aclose()


@virtual_time
async def test_a_broken_connection_is_replaced() -> None:
    """The pool returns no closed connection, and keeps none."""
    broker = FakeBroker()
    pool, _ = client(broker)
    first = await pool.get(URL)
    broker.cut()
    assert pool.connections() == []
    second = await pool.get(URL)
    assert second is not first
    assert pool.connections() == [second]
    await pool.aclose()


@virtual_time
async def test_a_failed_attempt_is_not_kept() -> None:
    """All callers of a failed attempt get its error; the next call makes another attempt."""
    broker = FakeBroker()
    broker.node(URL).is_down = True
    pool, _ = client(broker)
    failed = await asyncio.gather(pool.get(URL), pool.get(URL), return_exceptions=True)
    assert [type(each) for each in failed] == [ConnectionLostError, ConnectionLostError]
    broker.node(URL).start()
    assert (await pool.get(URL)).is_open
    await pool.aclose()


@virtual_time
async def test_closing_the_pool_ends_attempts() -> None:
    """Callers that wait while the pool closes get its error, later ones too; nothing is left."""
    broker = FakeBroker()
    broker.node(URL).hangs = True
    pool, lookup = client(broker)
    waiting = asyncio.create_task(lookup.broker(TOPIC))
    await asyncio.sleep(1)
    await pool.aclose()
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await pool.get(URL)
    await pool.aclose()
    assert len(asyncio.all_tasks()) == 1
