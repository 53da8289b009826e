"""A disk that is really full: a small file system in memory, where one may be mounted."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A folder with a file system of its own."""

    def __init__(self, folder: Path, mount: str) -> None:
        self.folder = folder
        self._mount = mount

    def resize(self, kib: int) -> None:
        """Make it larger, as when somebody else's files go."""
        subprocess.run([self._mount, "-o", f"remount,size={kib}k", str(self.folder)], check=True)


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[SmallDisk]:
    """Mount a file system of so many KiB at a folder that is made; skips the test where that is not permitted."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        pytest.skip("no mount here")
    folder.mkdir()
    command = [mount, "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system in memory cannot be mounted here")
    try:
        yield SmallDisk(folder, mount)
    finally:
        subprocess.run([umount, str(folder)], check=True)
