"""A received message: its payload and the fields that its producer and the broker set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from ..ids import MessageId
from ._port import Delivery

MaybeNone: TypeAlias = Any
"""Stands for None where it is rare: type checkers then do not require a check at each use."""


class ReceivedMessage:
    """A message without verbs: what a reader returns, and what a :class:`~pulsar_nack.Message` has besides them."""

    __slots__ = ("_delivery",)

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    @property
    def id(self) -> MessageId:
        """Return the message id."""
        return self._delivery.id

    @property
    def data(self) -> bytes | MaybeNone:
        """Return the payload; None where the producer sent no value (``send(None)``), which differs from ``b""``.

        :raises UndecodableMessageError: it cannot be read; see :attr:`error`
        """
        delivery = self._delivery
        if delivery.error is not None:
            raise delivery.error
        return None if delivery.is_null else delivery.data

    @property
    def error(self) -> Exception | None:
        """Return why the payload cannot be read, None if it can: it is encrypted, damaged or of an unknown kind."""
        return self._delivery.error

    def value(self) -> Any:
        """Return the payload decoded by the subscription's schema; without a schema, as :attr:`data`.

        :raises UndecodableMessageError: as :attr:`data`
        """
        data, native = self.data, self._delivery.native
        return native.value() if data is not None and hasattr(native, "value") else data

    @property
    def properties(self) -> Mapping[str, str]:
        """Return the producer's properties."""
        return self._delivery.properties

    @property
    def key(self) -> str | None:
        """Return the partition key, None without one."""
        return self._delivery.key

    @property
    def ordering_key(self) -> str | None:
        """Return the ordering key, None without one."""
        return self._delivery.ordering_key

    @property
    def topic(self) -> str:
        """Return the full topic name, with the partition."""
        return self._delivery.topic

    @property
    def publish_time_ms(self) -> int:
        """Return the publish time, epoch ms."""
        return self._delivery.publish_time_ms

    @property
    def event_time_ms(self) -> int:
        """Return the producer's event time, epoch ms, 0 without one."""
        return self._delivery.event_time_ms

    @property
    def producer_name(self) -> str | None:
        """Return the name of the producer; None on local topics."""
        return self._delivery.producer_name

    @property
    def sequence_id(self) -> int | None:
        """Return the producer's number of the message; None on local topics and over the official client."""
        return self._delivery.sequence_id

    @property
    def schema_version(self) -> bytes | None:
        """Return the version of the topic's schema that the message was sent with; None: without one."""
        return self._delivery.schema_version

    @property
    def replicated_from(self) -> str | None:
        """Return the cluster the message was replicated from; None if not replicated, or over the official client."""
        return self._delivery.replicated_from

    @property
    def is_replicated(self) -> bool:
        """Return whether the message came from another cluster."""
        return self._delivery.replicated_from is not None

    @property
    def native(self) -> Any:
        """Return the transport's own message object (``pulsar.Message`` for the official client)."""
        return self._delivery.native

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}, {self._size()}>"

    def _size(self) -> str:
        unreadable = "" if self.error is None else ", cannot be read"
        size = "null" if self._delivery.is_null else f"{len(self._delivery.data)} bytes"
        return f"{size}{unreadable}"
