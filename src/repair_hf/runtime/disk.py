"""Drives of other machines."""

from __future__ import annotations

from pathlib import Path

import psutil

NETWORK_DRIVES = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "lustre", "beegfs", "gpfs")


def is_network_drive(folder: Path) -> bool:
    """Return whether a folder is on a drive of another machine, as far as the system says."""
    places = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    above = next((str(each) for each in (folder.resolve(), *folder.resolve().parents) if str(each) in places), "")
    return places.get(above, "") in NETWORK_DRIVES
