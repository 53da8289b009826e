"""``connect``: a native client, without the official one. Its dependencies are imported when it is called."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from ._check import check_flag

if TYPE_CHECKING:
    from .wire import Client


def connect(url: str, *, freeze_gc: bool = False, **options: Any) -> Client:
    """Return a native client of a broker, which does not use the official client.

    Nothing is sent yet. Connections are made when needed, shared, and made again when they break.

    :param url: ``pulsar://host:6650``, or ``pulsar+ssl://host:6651``, with several hosts separated by commas
    :param freeze_gc: collect garbage once, and exempt all present objects from later collections (:func:`gc.freeze`). A
        full collection stops the event loop, for longer the more objects there are. This affects the whole process, so
        use it after all imports and before the work begins
    :param options: the fields of :class:`~pulsar_nack.wire.ClientOptions`: ``authentication``, ``tls``, timeouts
    :raises InvalidArgumentError: names the argument
    :raises MissingExtraError: protobuf or google-crc32c is not installed

    ::

        async with pulsar_nack.connect("pulsar://localhost:6650") as client:
            async with client.subscribe("orders", "billing") as consumer:
                message = await consumer.receive()
                await message.nack(delay=2.5)
    """
    from .wire._client import connect as connect_now

    check_flag("freeze_gc", freeze_gc)
    client = connect_now(url, options)
    if freeze_gc:
        gc.collect()
        gc.freeze()
    return client
