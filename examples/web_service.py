"""A small web service and a consumer, in one event loop and one process.

    pip install 'pulsar-nack[demo]'
    python examples/web_service.py --port 8080
    curl -d 'hello' localhost:8080/jobs       # publishes a job; each fails once and comes back after a second
    curl localhost:8080/health                # 200 while the consumer works, 503 when it does not
    curl localhost:8080/statistics            # the consumer's statistics

It uses the broker at PULSAR_SERVICE_URL, or starts an embedded one, and ends on SIGTERM, on Ctrl-C, or after --seconds.
The HTTP code is minimal. In a real service your framework's start and stop hooks do this work, as in FastAPI:

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with pulsar_nack.connect(URL) as client, client.subscribe(TOPIC, "web-service") as consumer:
            worker = asyncio.create_task(consumer.run(work))
            yield
            await consumer.drain(timeout=10)
            await worker

    app = FastAPI(lifespan=lifespan)
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

import pulsar_nack.wire
from pulsar_nack import Message
from pulsar_nack.consumer import Retry
from pulsar_nack.testing import EmbeddedBroker

TOPIC = "example-web-jobs"
MAX_BYTES = 1_000_000


class Service:
    """The web server and the consumer of the service."""

    def __init__(self, consumer: pulsar_nack.Consumer, producer: pulsar_nack.wire.Producer) -> None:
        self.consumer = consumer
        self.producer = producer
        self.worker: asyncio.Task[Any] | None = None
        self.done = 0

    async def work(self, message: Message) -> None:
        """Handle a message; each fails at its first attempt, so that there is something to see."""
        if message.attempt == 1:
            raise Retry(delay=1.0)
        self.done += 1

    async def answer(self, method: str, path: str, body: bytes) -> tuple[HTTPStatus, dict[str, Any]]:
        """Return the status and content of the answer to a request."""
        match method, path:
            case "GET", "/health":
                is_working = self.worker is not None and not self.worker.done()
                status = HTTPStatus.OK if is_working else HTTPStatus.SERVICE_UNAVAILABLE
                return status, {"working": is_working}
            case "GET", "/statistics":
                return HTTPStatus.OK, {"done": self.done, **dataclasses.asdict(self.consumer.statistics())}
            case "POST", "/jobs":
                await self.producer.send(body)
                return HTTPStatus.ACCEPTED, {"bytes": len(body)}
        return HTTPStatus.NOT_FOUND, {"error": f"no {method} {path}"}

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request, answer it, and close the connection."""
        try:
            async with asyncio.timeout(10):
                status, content = await self.answer(*await read_request(reader))
                data = json.dumps(content, default=str).encode()  # default=str: the statistics may hold the last error
                writer.write(
                    f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
                )
                writer.write(data)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, TimeoutError):
            pass  # an invalid or incomplete request gets no answer
        finally:
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
    """Return method, path and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request, *lines = head.splitlines()
    headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
    length = int(headers.get("content-length", "0"))
    if length > MAX_BYTES:
        raise ValueError(f"a body of {length} bytes")
    method, path, _ = request.split(" ", 2)
    return method, path, await reader.readexactly(length)


async def main(port: int, seconds: float | None) -> None:
    """Serve until a signal or the time limit stops the service."""
    stopping = stop_signals()
    async with (
        broker() as url,
        pulsar_nack.connect(url) as client,
        client.producer(TOPIC) as producer,
        client.subscribe(TOPIC, "web-service") as consumer,
    ):
        service = Service(consumer, producer)
        service.worker = asyncio.create_task(consumer.run(service.work, concurrency=100))
        server = await asyncio.start_server(service.serve_one, "127.0.0.1", port)
        print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stopping.wait()
        server.close()  # no new requests
        await consumer.drain(timeout=10)  # other consumers get what was fetched ahead; running handlers finish
        await service.worker
    print("stopped", flush=True)


def stop_signals() -> asyncio.Event:
    """Return an event that SIGTERM or Ctrl-C sets."""
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # on Windows, where Ctrl-C ends the process
            asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    return stopping


@asynccontextmanager
async def broker() -> AsyncIterator[str]:
    """Yield the address of the broker in the environment, or of an embedded one."""
    if url := os.environ.get("PULSAR_SERVICE_URL"):
        yield url
    else:
        async with EmbeddedBroker() as embedded:
            yield embedded.service_url


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="the port to listen on; 0: a free port, which is printed")
    parser.add_argument("--seconds", type=float, help="end after this time")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.port, arguments.seconds))
