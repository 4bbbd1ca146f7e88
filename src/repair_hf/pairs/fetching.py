"""Download the images that a table names by address, once, into the cache of Hugging Face's assets.

A table may come from a stranger, so only http and https are spoken, and by default with public addresses only. The
host is looked up here and the request sent to the very address that was checked: a name cannot lead elsewhere later.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import os
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from huggingface_hub import cached_assets_path
from tqdm.asyncio import tqdm

from repair_hf.pairs.images import MAX_BYTES

SCHEMES = ("http", "https")
SECONDS = 60.0  # for one image, with redirects
REDIRECTS = 5
AT_ONCE = 16


class Unfetched(Exception):
    """Why an image cannot be downloaded."""


def is_address(name: str | None) -> bool:
    """Whether the name of an image is an address, of whatever scheme."""
    return name is not None and "://" in name


def fetched_folder() -> Path:
    """Return the folder of downloaded images."""
    return cached_assets_path("repair_hf", "images")


def fetch_images(urls: Iterable[str], *, private: bool = False) -> dict[str, Path | Unfetched]:
    """Download images that are not in the cache yet; return the file of each, or why there is none.

    `private` also allows addresses of this machine and of private networks.
    """
    with ThreadPoolExecutor(1) as thread:  # a notebook's own thread runs a loop already
        return thread.submit(asyncio.run, _fetch_all(dict.fromkeys(urls), private)).result()


async def _fetch_all(urls: Iterable[str], private: bool) -> dict[str, Path | Unfetched]:
    folder, turns = fetched_folder(), asyncio.Semaphore(AT_ONCE)
    # without kept connections: those of one address may belong to several hosts
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=SECONDS, limits=limits, trust_env=False) as client:

        async def fetch(url: str) -> tuple[str, Path | Unfetched]:
            file = folder / hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:40]
            async with turns:
                try:
                    if not file.is_file():
                        async with asyncio.timeout(SECONDS):
                            await _download(client, url, file, private)
                    return url, file
                except Unfetched as error:
                    return url, error
                except TimeoutError:
                    return url, Unfetched(f"no whole image within {SECONDS:g} s")
                except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, socket.gaierror) as error:
                    return url, Unfetched(f"{type(error).__name__} {error}".strip())

        return dict(await tqdm.gather(*map(fetch, urls), desc="Downloading images", delay=3, disable=None))


async def _download(client: httpx.AsyncClient, name: str, file: Path, private: bool) -> None:
    url = httpx.URL(name)
    for _ in range(REDIRECTS + 1):
        if url.scheme not in SCHEMES or not url.host or (url.port or 0) > 65535:
            raise Unfetched("not an http or https address")
        address = await _checked_address(url, private)
        request = client.build_request(
            "GET",
            url.copy_with(host=f"[{address}]" if address.version == 6 else str(address)),
            headers={"Host": url.netloc.decode(), "Accept-Encoding": "identity", "User-Agent": "repair-hf"},
            extensions={"sni_hostname": url.raw_host.decode()},
        )
        response = await client.send(request, stream=True)
        try:
            if response.has_redirect_location:
                url = url.join(response.headers["Location"])
                continue
            if response.status_code != 200:
                raise Unfetched(f"HTTP {response.status_code}")
            return await _save(response, file)
        finally:
            await response.aclose()
    raise Unfetched(f"more than {REDIRECTS} redirects")


async def _checked_address(url: httpx.URL, private: bool) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Look up a host; all of its addresses must be public, unless private ones are allowed."""
    port = url.port or (443 if url.scheme == "https" else 80)
    found = await asyncio.get_running_loop().getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in found]
    for address in addresses:
        if not private and not _is_public(address):
            raise Unfetched(f"{address} is a private address; `private_urls` allows it")
    return addresses[0]


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is one of the public internet, and holds no other address (IPv6 only)."""
    if address.version == 6 and (address.ipv4_mapped or address.sixtofour or address.teredo):
        return False
    is_unicast = address.version == 4 or address in ipaddress.ip_network("2000::/3")
    return address.is_global and is_unicast and not address.is_multicast


async def _save(response: httpx.Response, file: Path) -> None:
    draft = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as out:
            async for chunk in response.aiter_raw():
                if out.tell() + len(chunk) > MAX_BYTES:
                    raise Unfetched(f"more than {MAX_BYTES:,} bytes")
                out.write(chunk)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
