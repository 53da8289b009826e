"""What a zstd frame asks for, read from its headers (RFC 8878) before it is decompressed.

A frame's header claims a window that the decompressor takes memory for, whatever the message's own size; and frames can
follow one another, each with its own. One frame is taken, and a window up to a limit.
"""

from __future__ import annotations

from typing import Final

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_USUAL_WINDOW: Final = 8 << 20  # what every decompressor should support
_DICTIONARY_ID_BYTES: Final = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES: Final = (0, 2, 4, 8)
_RLE: Final = 1
_RESERVED: Final = 3


def check_zstd(data: bytes, size: int, max_bytes: int) -> None:
    """Raise ValueError unless ``data`` is one frame that needs little memory and does not contradict ``size``.

    :param max_bytes: the largest window, but never below 8 MiB: compressors take such for short messages too
    """
    try:
        at = _check_header(data, size, max(max_bytes, _USUAL_WINDOW))
        end = _end_of_blocks(data, at) + (4 if data[4] & 0x04 else 0)
    except IndexError:
        raise ValueError("it ends early") from None
    if end != len(data):
        raise ValueError(f"it ends at byte {end}")


def _check_header(data: bytes, size: int, max_window: int) -> int:
    """Return where the blocks begin."""
    if data[:4] != _MAGIC:
        raise ValueError("it does not begin as such")
    descriptor = data[4]
    is_single = bool(descriptor & 0x20)
    at = 5
    if not is_single:
        base = 1 << (10 + (data[at] >> 3))
        window = base + (base >> 3) * (data[at] & 7)
        at += 1
        if window > max_window:
            raise ValueError(f"it needs {window} bytes, at most {max_window} are taken")
    at += _DICTIONARY_ID_BYTES[descriptor & 3]
    width = _CONTENT_SIZE_BYTES[descriptor >> 6] or int(is_single)
    if width:
        content = int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)
        if content != size:
            raise ValueError(f"it has {content} bytes instead of {size}")
    return at + width


def _end_of_blocks(data: bytes, at: int) -> int:
    is_last = False
    while not is_last:
        header = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        is_last = bool(header & 1)
        kind = header >> 1 & 3
        if kind == _RESERVED:
            raise ValueError(f"a block of an unknown kind at byte {at}")
        at += 3 + (1 if kind == _RLE else header >> 3)
    return at
