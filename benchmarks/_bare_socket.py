"""What the broker and the network allow: one blocking socket in one thread, which sends only the necessary commands."""

from __future__ import annotations

import re
import socket
import time
from collections import deque
from contextlib import closing
from typing import Final

from pulsar_nack.wire._consumer._ack_groups import AckGroup
from pulsar_nack.wire._consumer._consumer_session import ack_command, flow_command, redeliver_command, subscribe_command
from pulsar_nack.wire._consumer._subscribe_options import SubscribeOptions
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._frames import FrameDecoder, MessageCommand, encode_command

_CONSUMER: Final = 1
_READ_BYTES: Final = 64 * 1024
_AHEAD: Final = 1_000
_FLOW: Final = 50
_GROUP: Final = 100
_TIMEOUT_S: Final = 60.0


class BareSocket:
    """One consumer of a topic, on a separate connection."""

    def __init__(self, url: str, topic: str, subscription: str) -> None:
        found = re.fullmatch(r"pulsar://(.*):(\d+)/?", url)
        if found is None:
            raise SystemExit(f"{url}: not a plain address")
        self._socket = socket.create_connection((found[1], int(found[2])), timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder()
        self._here = deque[tuple[int, int]]()
        connect = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        connect.connect.client_version = "bare"
        connect.connect.protocol_version = 20
        self._ask(encode_command(connect), pb.BaseCommand.CONNECTED)
        options = SubscribeOptions(subscription, type="shared", initial_position="earliest")
        subscribe = subscribe_command(topic, _CONSUMER, 1, options, start=None, epoch=0)
        self._ask(encode_command(subscribe), pb.BaseCommand.SUCCESS)
        self.send(flow_command(_CONSUMER, _AHEAD))

    def send(self, data: bytes) -> None:
        """Send a command."""
        self._socket.sendall(data)

    def message(self) -> tuple[int, int]:
        """Return the ledger and entry of the next message."""
        while not self._here:
            self._read()
        return self._here.popleft()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _ask(self, data: bytes, kind: int) -> None:
        self.send(data)
        while kind not in self._read():
            pass

    def _read(self) -> list[int]:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise SystemExit("the broker closed the connection")
        kinds = list[int]()
        for command, _ in self._decoder.feed(data):
            if isinstance(command, MessageCommand):
                self._here.append(command[1:3])
                continue
            kinds.append(command.type)
            if command.type == pb.BaseCommand.PING:
                self.send(encode_command(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong())))
        return kinds


def arrival(url: str, topic: str, subscription: str, count: int, pause: float) -> list[float]:
    """Return ms from a redelivery request to the arrival of the topic's only message, one at a time."""
    took = []
    with closing(BareSocket(url, topic, subscription)) as bare:
        place = bare.message()
        bare.send(flow_command(_CONSUMER, count))
        for _ in range(count):
            began = time.perf_counter()
            bare.send(redeliver_command(_CONSUMER, [place]))
            place = bare.message()
            took.append(1e3 * (time.perf_counter() - began))
            time.sleep(pause)
    return took


def rate(bare: BareSocket, count: int) -> None:
    """Receive messages, and acknowledge them a hundred at a time without waiting for a confirmation."""
    group = AckGroup()
    for number in range(1, count + 1):
        group.entries[bare.message()] = 0
        if number % _FLOW == 0:
            bare.send(flow_command(_CONSUMER, _FLOW))
        if number % _GROUP == 0 or number == count:
            bare.send(ack_command(_CONSUMER, group, None))
            group = AckGroup()
