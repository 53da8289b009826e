"""The set of pending ids: one bitmap over the numbers that ``_id_blocks`` gives to ids.

The bitmap alone says what is pending, except for the *tail*: numbers that were appended to a plain array because they
are certain to be new. Adding many numbers to the bitmap at once is ten times as fast as adding each. So everything that
reads the bitmap calls :meth:`PendingIds.settle` first, which moves the tail into it. The bitmap is run-optimized as
blocks appear, because the older ones are mostly no longer written to.

Indexes of blocks are given out in rising order, and a released index is reused as late as possible. So in an ordered
stream a newer message has the larger number. Numbers of more than 65 536 blocks do not fit into 32 bits; then 64 are
used.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyroaring import BitMap, BitMap64

from ..ids import MessageId, _merge_ids
from ._id_blocks import BLOCK_SIZE, BlockKey, IdBlock, IdRun, block_key
from ._ranges import container_bytes

_BLOCK_BYTES: Final = 420
_BITSET_BYTES: Final = 8_192
_WIDE_LIMIT: Final = 1 << 40
_FEW_ADDED: Final = 4
_FEW_REMOVED: Final = 4_096
_FEW_EACH: Final = 8
_RELEASE_FROM: Final = 64
_FEW_BLOCKS: Final = 8
"""This many blocks are kept when nothing is pending; the base of the index's memory figure includes them."""


class PendingIds:
    """Numbers for ids, and which of them are pending.

    Numbers have 32 bits until :meth:`widen` is called, which more than 65 536 blocks at once require. ``count`` is how
    many numbers are in the bitmap; :func:`len` also counts the tail. ``are_in_order`` says that the blocks lie in order
    of position; it may stay False after they have become ordered.
    """

    __slots__ = (
        "_fresh",
        "_measured",
        "_measured_count",
        "_new_blocks",
        "_newest",
        "_release_at",
        "_released",
        "_topics",
        "are_in_order",
        "bitmap_type",
        "block",
        "block_at",
        "block_limit",
        "blocks",
        "count",
        "numbers",
        "originals",
        "tail",
        "typecode",
    )

    def __init__(self) -> None:
        self.blocks: dict[BlockKey, IdBlock] = {}
        self.block_at: dict[int, IdBlock] = {}
        """The blocks by index."""
        self.originals: dict[int, MessageId] = {}
        """The ids of chunked messages, which cannot be made from a number."""
        self._released: deque[int] = deque()
        self._topics: dict[tuple[str, int], str] = {}
        self.clear()

    def clear(self) -> None:
        """Remove everything; the next block has index 0, and numbers have 32 bits again."""
        self.bitmap_type: type[Any] = BitMap
        self.typecode = "I"
        self.numbers: Any = BitMap()
        self.tail: array[int] = array("I")
        self.count = 0
        self.originals.clear()
        self.blocks.clear()
        self.block_at.clear()
        self.block: IdBlock | None = None
        """The current block: the last one that an id was added to."""
        self.block_limit = BLOCK_SIZE
        self.are_in_order = True
        self._released.clear()
        self._topics.clear()
        self._fresh = 0
        self._newest: IdBlock | None = None
        self._release_at = _RELEASE_FROM
        self._new_blocks = self._measured = self._measured_count = 0

    def keep_few_blocks(self) -> bool:
        """Remove all numbers and keep the id blocks, if they are few and in order; return whether they are."""
        if len(self.blocks) > _FEW_BLOCKS or not self.are_in_order or self.bitmap_type is not BitMap:
            return False
        self.numbers.clear()
        self._measured = self._measured_count = 0
        return True

    def __len__(self) -> int:
        return self.count + len(self.tail)

    @property
    def is_wide(self) -> bool:
        """Return whether numbers have 64 bits."""
        return self.bitmap_type is BitMap64

    def widen(self) -> None:
        """Change to numbers of 64 bits; the tail is empty."""
        self.bitmap_type, self.typecode = BitMap64, "Q"
        self.block_limit = _WIDE_LIMIT
        self.numbers = widened(self.numbers)
        self.tail = array("Q")

    def settle(self) -> None:
        """Move the numbers of the tail into the bitmap."""
        tail = self.tail
        if not tail:
            return
        self.count += len(tail)
        if len(tail) <= _FEW_ADDED:
            for number in tail:
                self.numbers.add(number)
        else:
            self.numbers.update(tail)
        del tail[:]

    def number_if_pending(self, ledger: int, entry: int, partition: int, batch_index: int) -> int | None:
        """Return the number of a pending id, None if the id is not pending."""
        self.settle()
        block = self.blocks.get(block_key(ledger, entry, partition, batch_index))
        if block is None:
            return None
        number = block.number(entry, batch_index)
        return number if number in self.numbers else None

    # -- from numbers back to ids ------------------------------------------------------------------------------------

    def runs(self, numbers: Any) -> list[IdRun]:
        """Cut a bitmap by block, in order of ledger and entry; few numbers of many blocks stay one run."""
        flat = numbers.to_array()
        block_at = self.block_at
        if self.are_in_order and flat and len(flat) < _FEW_EACH * ((flat[-1] >> 16) - (flat[0] >> 16)):
            return [([block_at[number >> 16] for number in flat], flat)]
        runs = [(block_at[run[0] >> 16], run) for run in by_block(flat)]
        if not self.are_in_order:
            runs.sort(key=_place)
        return list[IdRun](runs)

    def parts(self, numbers: Any) -> list[tuple[IdBlock, Any]]:
        """Cut a bitmap into one bitmap for each block, in order of ledger and entry."""
        first, last = numbers.min() >> 16, numbers.max() >> 16
        if first == last:
            return [(self.block_at[first], numbers)]
        parts = []
        while numbers:
            base = numbers.min() & ~(BLOCK_SIZE - 1)
            part = numbers & self.bitmap_type(range(base, base + BLOCK_SIZE))
            numbers = numbers - part
            parts.append((self.block_at[base >> 16], part))
        parts.sort(key=_place)
        return parts

    # -- chunked messages and removing -------------------------------------------------------------------------------

    def keep_original(self, number: int, message_id: MessageId) -> None:
        """Keep the id of a chunked message, merged with an equal one that is already kept."""
        known = self.originals.get(number)
        self.originals[number] = message_id if known is None else _merge_ids(message_id, known)

    def discard(self, number: int) -> None:
        """Remove one pending number."""
        self.numbers.discard(number)
        self.originals.pop(number, None)
        self.count -= 1

    def remove(self, numbers: Any) -> dict[int, MessageId]:
        """Remove a bitmap of pending numbers; return the ids of the chunked messages among them by number.

        Few numbers of many blocks are removed one by one, and so are few numbers of 64 bits: subtracting such a bitmap
        rebuilds all of the first, which takes 4 ms with 60 000 blocks, as long as 8 000 numbers take.
        """
        if not numbers:
            return {}
        self.count -= len(numbers)
        few = _FEW_REMOVED if self.is_wide else _FEW_EACH * ((numbers.max() >> 16) - (numbers.min() >> 16))
        if len(numbers) < few:
            discard = self.numbers.discard
            for number in numbers:
                discard(number)
        else:
            self.numbers -= numbers
        return self.take_originals(numbers)

    def take_originals(self, numbers: Any) -> dict[int, MessageId]:
        """Remove the ids of the chunked messages among ``numbers``; return them by number, with their topics."""
        originals = self.originals
        if not originals:
            return {}
        few, many = (numbers, originals) if len(numbers) < len(originals) else (list(originals), numbers)
        taken = {number: originals.pop(number) for number in few if number in many}
        for number, message_id in taken.items():
            topic = self.block_at[number >> 16].topic
            if topic is not None and message_id.topic is None:
                taken[number] = message_id._replace(topic=topic)
        return taken

    # -- blocks and memory -------------------------------------------------------------------------------------------

    def has_room_for(self, key: BlockKey) -> bool:
        """Return whether the key has a block, or an index within the limit is left for one."""
        return self._fresh < self.block_limit or bool(self._released) or key in self.blocks

    def block_of(self, key: BlockKey, topic: str | None, in_use: Any) -> IdBlock:
        """Return the block of a key, made if it is missing; ``in_use`` are numbers whose blocks stay."""
        block = self.block
        if block is None or block.key != key:
            if len(self.blocks) >= self._release_at:
                self.release_unused(list(self.blocks.values()), in_use)
                self._release_at = 2 * len(self.blocks) + _RELEASE_FROM
            block = self.blocks.get(key)
            if block is None:
                block = self._make_block(key)
        self.set_topic(block, topic)
        return block

    def set_topic(self, block: IdBlock, topic: str | None) -> None:
        """Let a block keep the first topic that is given for it."""
        if topic is not None and block.topic is None:
            block.topic = self._topics.setdefault((topic, block.partition), topic)

    def _make_block(self, key: BlockKey) -> IdBlock:
        if self._fresh < self.block_limit:
            index = self._fresh
            self._fresh += 1
        else:
            index = self._released.popleft()
        block = IdBlock(index, key)
        newest, self._newest = self._newest, block
        if newest is not None and (index < newest.index or block.place < newest.place):
            self.are_in_order = False
        self.blocks[key] = self.block_at[index] = block
        self._new_blocks += 1
        if self._new_blocks > len(self.blocks) >> 4:
            self._measure()
        return block

    def release_unused(self, blocks: Iterable[IdBlock], in_use: Any) -> None:
        """Release blocks that have neither a pending number nor one of ``in_use``; the current block stays."""
        count_within = self.numbers.range_cardinality
        for block in blocks:
            end = block.base + BLOCK_SIZE
            if block is self.block or count_within(block.base, end):
                continue
            if not in_use or not in_use.range_cardinality(block.base, end):
                del self.blocks[block.key], self.block_at[block.index]
                self._released.append(block.index)
        if not self.blocks:
            self._topics.clear()
            self._newest = None
            self.are_in_order = True

    def _measure(self) -> None:
        self.numbers.run_optimize()
        self._new_blocks = 0
        figures = self.numbers.get_statistics()
        self._measured = container_bytes(figures) + 48 * int(figures["n_containers"])
        self._measured_count = int(figures["cardinality"])

    def memory(self) -> int:
        """Return about how many bytes are held. O(1)."""
        grown = min(2 * max(len(self) - self._measured_count, 0), _BITSET_BYTES * (self._new_blocks + 1))
        return self._measured + grown + _BLOCK_BYTES * max(len(self.blocks) - _FEW_BLOCKS, 0)


def widened(numbers: Any) -> Any:
    """Return a bitmap of 32-bit numbers as one of 64-bit numbers."""
    return BitMap64(array("Q", numbers.to_array()))


def by_block(flat: array[int]) -> Iterator[array[int]]:
    """Cut ascending numbers where the block changes."""
    at = 0
    while at < len(flat):
        end = bisect_left(flat, (flat[at] | (BLOCK_SIZE - 1)) + 1, at)
        yield flat[at:end]
        at = end


def _place(run: tuple[IdBlock, Any]) -> tuple[int, int, int, int]:
    return run[0].place
