"""What the judge of the soak calls wrong."""

from __future__ import annotations

import pytest

from tests.soak._judge import GRACE_S, Judge


def judged(*lines: str, disturbed_at: float | None = None) -> Judge:
    """Return a judge that has these reports."""
    judge = Judge()
    if disturbed_at is not None:
        judge.disturb("cuts", disturbed_at)
    for line in lines:
        judge.note(1, line)
    return judge


HANDLED = ("begin 7 1 10.0", "try 7", "acked 7 10.0 10.1 1")


@pytest.mark.parametrize("lines", [(*HANDLED, "begin 7 1 11.2"), ("begin 7 1 11.2", *HANDLED)])
def test_handled_again_after_a_reported_acknowledgement(lines: tuple[str, ...]) -> None:
    """U24, U44: it is wrong whichever worker reports first."""
    assert judged(*lines).wrong == ["7 was handled 1.100 s after its acknowledgement was reported"]


def test_handled_by_two_before_either_acknowledged() -> None:
    """U44: that is at least once, as after the end of a lease, and right."""
    judge = judged("begin 7 1 10.0", "begin 7 2 11.0", "try 7", "acked 7 10.0 12.0 0", "try 7", "acked 7 11.0 12.5 1")
    judge.end([7], [])
    assert (judge.wrong, judge.repeated) == ([], {})


@pytest.mark.parametrize("late_s", [GRACE_S - 1, GRACE_S + 1])
def test_begun_elsewhere_after_a_late_acknowledgement(late_s: float) -> None:
    """U44: after a lease that may have ended another worker may have the message, but not for ever."""
    judge = judged("begin 7 1 10.0", "try 7", "acked 7 10.0 12.0 0", f"begin 7 2 {12 + late_s}")
    assert (len(judge.wrong), len(judge.repeated)) == (late_s > GRACE_S, late_s <= GRACE_S)


@pytest.mark.parametrize("disturbed_at", [7.5, 8.5, 10.05, 11.0])
def test_begun_elsewhere_after_the_connection_broke(disturbed_at: float) -> None:
    """O3: a broken connection excuses a message that was being handled then, or soon after, and no other."""
    judge = judged(*HANDLED, "begin 7 1 11.2", disturbed_at=disturbed_at)
    assert len(judge.wrong) == (disturbed_at in {7.5, 11.0})


def test_a_twin_that_waits() -> None:
    """U23: the second of two workers that got a message at once may defer it, and handle it seconds later."""
    judge = judged("begin 7 1 10.0", "begin 7 1 10.01", "deferred 7", "try 7", "acked 7 10.0 10.1 1", "begin 7 1 15.0")
    judge.end([7], [])
    assert (judge.wrong, judge.repeated) == ([], {"7": "a twin"})


@pytest.mark.parametrize("count", [3, 4])
def test_few_messages_come_twice_at_once(count: int) -> None:
    """U23: the second of two workers may begin just after a quick first one acknowledged; many of these are wrong."""
    judge = judged(*(line.replace("7 ", f"{each} ") for each in range(count) for line in (*HANDLED, "begin 7 2 10.9")))
    judge.end(range(count), [])
    assert len(judge.wrong) == (count > 3)


@pytest.mark.parametrize("count", [3, 4])
def test_few_redelivered_messages_come_twice(count: int) -> None:
    """U23: brokers send some redelivered messages to two consumers at once; many of these are wrong."""
    lines = []
    for number in range(count):
        lines += [f"begin {number} 1 9.0", f"begin {number} 2 10.0", f"acked {number} 10.0 10.1 1"]
        lines += [f"begin {number} 2 10.2", f"acked {number} 10.2 10.3 1"]
    judge = judged(*lines)
    judge.end(range(count), [])
    assert judge.wrong == ([] if count <= 3 else ["4 were handled again after redeliveries: ['0', '1', '2', '3']"])


def test_stored_twice() -> None:
    """U21: a number that the producer sent again is two messages, and each may be handled."""
    judge = judged("begin 7@1:0 1 10.0", "try 7@1:0", "acked 7@1:0 10.0 10.1 1", "begin 7@2:5 1 10.2")
    judge.end([7], ["7@2:5"])
    assert (judge.wrong, judge.settled) == (["7@2:5 was never settled"], {7})


def test_lost_stuck_and_back_again() -> None:
    """U21: in the end a message is settled, or was being settled when its worker was killed."""
    judge = judged(*HANDLED, "begin 8 1 10.0", "try 8", "begin 9 1 10.0")
    judge.end([7, 8, 9, 10], ["7", "10"])
    assert judge.wrong == ["7 was acknowledged and is there again", "10 was never settled", "9 is lost"]


def test_tasks_and_memory() -> None:
    """U18: a worker that leaves a task, or grows all the time, is wrong."""
    judge = judged("tasks 0", "tasks 2", *(f"memory {second} {second * 1_000_000}" for second in range(60)))
    judge.judge_memory(1)
    assert judge.wrong == ["worker 1 left 2 tasks", "worker 1 grew from 15.0 to 49.5 MB"]
