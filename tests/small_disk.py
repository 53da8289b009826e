"""A disk that is really full: a small file system in memory, if the test may mount one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A folder that is a small file system."""

    def __init__(self, folder: Path, mount: str) -> None:
        self.folder = folder
        self._mount = mount

    def resize(self, kib: int) -> None:
        """Enlarge it, as when other files are deleted."""
        subprocess.run([self._mount, "-o", f"remount,size={kib}k", str(self.folder)], check=True)


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[SmallDisk]:
    """Mount a file system of this many KiB at a new folder; skip the test if that is not permitted."""
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
