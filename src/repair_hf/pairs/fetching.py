"""Download the images that a table names by address, once, into the cache of Hugging Face's assets.

An address that cannot be used is remembered too. So every stage finds the same rows, whether or not the address
answers again. Proxies are those of the environment (`HTTPS_PROXY`, `NO_PROXY`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from huggingface_hub import cached_assets_path

from repair_hf.pairs.images import MAX_BYTES, UNDECODABLE, open_image
from repair_hf.runtime.progress import Progress

logger = logging.getLogger(__name__)

SECONDS = 60.0  # for one image, with redirects
REDIRECTS = 5
AT_ONCE = 16
Fetched = tuple[Path, str | None]  # the file of an image, and why it is not there


def fetched_folder() -> Path:
    """Return the folder of downloaded images."""
    return cached_assets_path("repair_hf", "images")


def fetch_images(urls: Iterable[str]) -> dict[str, Fetched]:
    """Download images that are not in the cache yet; return the file of each, and why it is not there, if so.

    Faults are remembered unless every address has one: then the network may be down.
    """
    names = {url: hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:40] for url in urls}
    folder = fetched_folder()
    failed = folder / "failed"
    failed.mkdir(parents=True, exist_ok=True)
    absent = {url: name for url, name in names.items() if not (folder / name).is_file()}
    faults = {
        url: (failed / name).read_text(encoding="utf-8") for url, name in absent.items() if (failed / name).is_file()
    }
    missing = [url for url in absent if url not in faults]
    headers = {"User-Agent": "repair-hf", "Accept-Encoding": "identity"}
    client = httpx.Client(timeout=SECONDS, max_redirects=REDIRECTS, follow_redirects=True, headers=headers)
    with client, ThreadPoolExecutor(AT_ONCE) as threads:
        found = threads.map(lambda url: _download(client, url, folder / names[url]), missing)
        shown = Progress(found, "Downloading images", total=len(missing), unit=" images", delay=3)
        faults |= {url: fault for url, fault in zip(missing, shown, strict=True) if fault is not None}
    if faults and len(faults) < len(names):
        for url in faults:
            (failed / names[url]).write_text(faults[url], encoding="utf-8")
        logger.warning("Addresses without an image stay left out. Delete %s to try them again.", failed)
    return {url: (folder / name, faults.get(url)) for url, name in names.items()}


def _download(client: httpx.Client, url: str, file: Path) -> str | None:
    """Download an image; return why it cannot be used, if so."""
    draft, end = file.with_name(f".{file.name}.{os.getpid()}.tmp"), time.monotonic() + SECONDS
    try:
        with client.stream("GET", url) as response:
            if response.status_code != 200:
                return f"HTTP {response.status_code}"
            with draft.open("wb") as out:
                for chunk in response.iter_raw():
                    if out.tell() + len(chunk) > MAX_BYTES:
                        return f"more than {MAX_BYTES:,} bytes"
                    if time.monotonic() > end:
                        return f"no whole image within {SECONDS:g} s"
                    out.write(chunk)
        try:
            open_image(str(draft)).close()
        except UNDECODABLE as error:
            return f"not an image ({type(error).__name__})"
        draft.replace(file)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        return f"{type(error).__name__} {error}".strip()
    finally:
        draft.unlink(missing_ok=True)
    return None
