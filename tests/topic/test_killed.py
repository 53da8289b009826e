"""A real process with a topic on real files that is killed repeatedly."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_nack.topic import open_local
from tests.victims import victims

from .victim import CONFIG

Said = dict[str, set[int]]


@pytest.mark.parametrize("kills", [pytest.param(1, marks=pytest.mark.smoke), pytest.param(12, marks=pytest.mark.slow)])
async def test_killed_again_and_again(tmp_path: Path, kills: int) -> None:
    """Unacknowledged messages come after each kill, flushed acknowledgements hold."""
    pytest.importorskip("google.protobuf")
    said: Said = {"published": set(), "acking": set(), "acked": set()}
    with victims("tests.topic.victim") as those:
        for kill in range(kills):
            for line in those.kill_after(150 + 17 * kill, str(tmp_path), kill * 1_000_000):
                what, number = line.split()
                said[what].add(int(number))
    assert len(said["published"]) > 20 * kills
    assert said["acked"]
    async with open_local(tmp_path, CONFIG) as topic:
        port = await topic.subscribe("s")
        received = [int((await port.receive()).data) for _ in range(topic.backlog("s"))]
    assert len(received) == len(set(received))
    assert not said["acked"] & set(received)
    assert said["published"] - said["acking"] <= set(received)
