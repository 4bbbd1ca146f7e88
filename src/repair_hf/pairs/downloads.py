"""Download one large file, and unpack an archive; both go on where they were interrupted."""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

import httpx
from tqdm import tqdm

from repair_hf.runtime.disk import check_room, is_full
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import RunStopped

CHUNK = 2**20
SECONDS = 60.0  # without an answer


def download(url: str, file: Path, *, size: int | None, sha256: str | None) -> None:
    """Download a file; what an interrupted download left in `FILE.part` is continued by an HTTP range.

    Raises:
        RunStopped: If the connection breaks, or the server does not answer as it should.
        UserError: If the file has another size or checksum. It is deleted.
    """
    part = file.with_name(f"{file.name}.part")
    have = part.stat().st_size if part.is_file() else 0
    check_room(file.parent, max((size or 0) - have, 0))
    if size is None or have < size:
        try:
            size = _append(url, part, have, size)
        except httpx.HTTPError as error:
            raise _broken(url, part, f"{type(error).__name__} {error}".strip()) from error
    if (found := part.stat().st_size) < (size or 0):
        raise _broken(url, part, "the connection was closed")
    wrong = f"{found:,} bytes instead of {size:,}" if size is not None and found > size else None
    if wrong is None and sha256 is not None and (digest := _sha256(part)) != sha256:
        wrong = f"the SHA-256 checksum {digest} instead of {sha256}"
    if wrong is not None:
        part.unlink()
        raise UserError(
            f"{file.name} from {url} has {wrong}; it was deleted. Type the command again to fetch it anew."
        )
    part.replace(file)


def unpack(archive: Path, folder: Path, members: str) -> None:
    """Unpack a zip or tar archive's files whose names match `members` into one folder, without their own folders.

    Files of the right size are left as they are.

    Raises:
        UserError: If the archive is damaged, or is none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name, size, source in _members(archive):
            file = folder / PurePosixPath(name).name
            if file.name.startswith(".") or not fnmatch(file.name, members):
                continue
            if file.is_file() and file.stat().st_size == size:
                continue
            draft = file.with_name(f".{file.name}.tmp")
            with source() as content, draft.open("wb") as out:
                while chunk := content.read(CHUNK):
                    out.write(chunk)
            draft.replace(file)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError) as error:
        if is_full(error):
            raise
        reason = str(error).partition("\n")[0].rstrip(".:")
        raise UserError(f"{archive} cannot be unpacked: {reason}. Delete it, and type the command again.") from error


def _append(url: str, part: Path, have: int, size: int | None) -> int | None:
    """Write what is missing; return the size of the whole file if it is known."""
    headers = {"Range": f"bytes={have}-"} if have else {}
    headers |= {"User-Agent": "repair-hf", "Accept-Encoding": "identity"}
    with httpx.stream("GET", url, headers=headers, timeout=SECONDS, follow_redirects=True) as response:
        if response.status_code == 416 and size is None:  # nothing is missing
            return have
        if response.status_code not in (200, 206):
            raise _broken(url, part, f"HTTP {response.status_code}")
        if response.headers.get("Content-Type", "").startswith("text/html"):
            file = part.with_suffix("")
            raise UserError(f"{url} answers with a web page. Open it in a browser, and save the download as {file}.")
        have = have if response.status_code == 206 else 0
        length = response.headers.get("Content-Length")
        total = size or (None if length is None else have + int(length))
        with part.open("ab" if have else "wb") as out, _bar(part, have, total) as bar:
            for chunk in response.iter_raw():  # as they come: what has come is kept if the connection breaks
                out.write(chunk)
                bar.update(len(chunk))
    return total


def _bar(part: Path, have: int, total: int | None) -> tqdm:
    return tqdm(
        desc=part.stem, initial=have, total=total, unit="B", unit_scale=True, unit_divisor=1000, delay=3, disable=None
    )


def _broken(url: str, part: Path, reason: str) -> RunStopped:
    have = part.stat().st_size if part.is_file() else 0
    return RunStopped(
        f"The download of {url} stopped after {have:,} bytes: {reason}. Rerun the same command to resume."
    )


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _members(archive: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
    """Yield name, size and a function that opens it, of each file in an archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as files:
            for each in files.infolist():
                if not each.is_dir():
                    yield each.filename, each.file_size, partial(files.open, each)
        return
    with tarfile.open(archive) as packed:
        for member in packed:
            if member.isfile():
                content = packed.extractfile(member)
                assert content is not None
                yield member.name, member.size, partial(_same, content)


def _same(content: IO[bytes]) -> IO[bytes]:
    return content
