"""Full disks, quotas and limits on files: one line with the folder and the space needed; drives of other machines."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from repair_hf.runtime.run_folder import RunStopped

NETWORK_DRIVES = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "lustre", "beegfs", "gpfs")
UNITS = {"GB": 10**9, "MB": 10**6}
# SQLite, torch and safetensors raise errors without a number; torch's writer names neither the disk nor the file.
_FULL = re.compile(r"No space left on device|disk is full|PytorchStreamWriter|inline_container\.cc.*unexpected pos")
_FORBIDDEN = re.compile("Disk quota|File too large")


# SQLite calls only ENOSPC a full disk. A quota or a limit on the size of files is one of these.
_REFUSED_WRITES = ("SQLITE_IOERR_WRITE", "SQLITE_IOERR_TRUNCATE", "SQLITE_IOERR_SHMSIZE")


class DiskFull(RunStopped):
    """A disk is full, or nothing more `is_allowed` there; with more space the same command goes on."""

    def __init__(self, folder: Path, size: int, *, is_allowed: bool = True) -> None:
        needed, free = readable(size), readable(shutil.disk_usage(_existing(folder)).free)
        if is_allowed:
            why = f"its disk is full. At least {needed} are needed, and {free} are free. Free some space"
        else:
            why = f"no more can be written: a quota or `ulimit -f` is reached. At least {needed} are needed. Raise it"
        super().__init__(f"{folder}: {why}; the same command resumes from here.")


def check_room(folder: str | Path, size: int) -> None:
    """Raise `DiskFull` unless so many bytes are free where a folder is, or will be."""
    if shutil.disk_usage(_existing(Path(folder))).free < size:
        raise DiskFull(Path(folder), size)


@contextmanager
def naming_full_disk(folder: str | Path, size: Callable[[], int]) -> Iterator[None]:
    """Turn whatever a full disk raises inside into `DiskFull`; `size` returns the bytes that are needed."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DiskFull) or not is_full(error):
            raise
        raise DiskFull(Path(folder), size(), is_allowed=not is_forbidden(error)) from error


def is_full(error: BaseException) -> bool:
    """Return whether an error says that a disk is full, or that no more may be written to it."""
    is_named = getattr(error, "errno", None) == errno.ENOSPC or _FULL.search(str(error)) is not None
    return is_named or is_forbidden(error)


def is_forbidden(error: BaseException) -> bool:
    """Return whether an error says that a quota, or a limit on the size of files, is reached."""
    number, name = getattr(error, "errno", None), getattr(error, "sqlite_errorname", None)
    is_named = number in (errno.EDQUOT, errno.EFBIG) or name in _REFUSED_WRITES
    return is_named or _FORBIDDEN.search(str(error)) is not None


def readable(size: int) -> str:
    """Return a number of bytes in words."""
    return next((f"{size / unit:,.1f} {name}" for name, unit in UNITS.items() if size >= unit), f"{size} bytes")


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def is_network_drive(folder: Path) -> bool:
    """Return whether a folder is on a drive of another machine, as far as the system says."""
    places = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    above = next((str(each) for each in (folder.resolve(), *folder.resolve().parents) if str(each) in places), "")
    return places.get(above, "") in NETWORK_DRIVES
