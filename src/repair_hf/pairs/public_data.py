"""Where public datasets and benchmarks come from, under which terms, and how what arrives is checked.

A part is a file or a folder that other commands read. It is downloaded, or a person must fetch it: then `step` says
how. Checksums of COCO's archives are those that TensorFlow Datasets records, those of SugarCrepe were computed from
its repository at the commit in the address.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.file_download import http_get

from repair_hf.runtime.disk import check_room, is_full
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import RunStopped

_COCO, _DRIVE = "http://images.cocodataset.org/zips", "https://drive.usercontent.google.com/download?export=download"
_SUGARCREPE = "https://raw.githubusercontent.com/RAIVNLab/sugar-crepe/0047054b243992f0fad63d6f64f7544862daf846/data"


@dataclass(frozen=True)
class Part:
    """A file or folder `name` of a dataset.

    Attributes:
        source: The address of `file`; without `step`, it is downloaded. A Hub id without `://`.
        file: What is downloaded: the part itself, or an archive that holds it.
        count: Number of files in the folder `name`; at least so many make it complete. 0 for a file.
        step: What a person must do to get `file`.
    """

    name: str
    file: str
    source: str
    size: int | None = None
    sha256: str | None = None
    count: int = 0
    step: str | None = None

    def is_there(self, folder: Path) -> bool:
        """Return whether a folder holds this part whole."""
        place = folder / self.name
        return place.is_file() if not self.count else place.is_dir() and len(os.listdir(place)) >= self.count

    @property
    def checked_by(self) -> str:
        """How the download is checked."""
        known = ["SHA-256"] * (self.sha256 is not None) + ["size"] * (self.size is not None)
        return ", ".join([*known, f"number of files ({self.count:,})" if self.count > 1 else "content"])


@dataclass(frozen=True)
class PublicData:
    """A dataset or benchmark: its parts, and the terms under which they are given."""

    parts: tuple[Part, ...]
    terms: str


def _karpathy(name: str) -> Part:
    return Part(
        name,
        "caption_datasets.zip",
        "https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip",
        36_745_453,
        "4cfd70132527b80933105e5829dc9034eaab9573482e2e680abbab6130244817",
    )


def _coco(name: str, size: int, sha256: str, count: int) -> Part:
    return Part(name, f"{name}.zip", f"{_COCO}/{name}.zip", size, sha256, count)


def _sugarcrepe(name: str, sha256: str) -> Part:
    return Part(f"{name}.json", f"{name}.json", f"{_SUGARCREPE}/{name}.json", sha256=sha256)


def _drive(name: str, file: str, id: str, count: int = 0) -> Part:
    return Part(name, file, f"{_DRIVE}&confirm=t&id={id}", count=count)


_COCO_TERMS = "COCO's annotations: CC BY 4.0. The photographs belong to their authors, under Flickr's terms."
_WINOGROUND_STEP = (
    "Accept the terms on https://huggingface.co/datasets/facebook/winoground, then type `hf auth login` with a token "
    "of that account"
)
SETS = {
    "flickr30k": PublicData(
        (
            _karpathy("dataset_flickr30k.json"),
            Part(
                "flickr30k-images",
                "flickr30k-images.tar.gz",
                "https://shannon.cs.illinois.edu/DenotationGraph/",
                count=31_014,
                step="Fill in the form that this page links to, and put the file that you are sent there",
            ),
        ),
        "The photographs are for non-commercial research and education only, under Flickr's terms; keep them private.",
    ),
    "coco": PublicData(
        (
            _karpathy("dataset_coco.json"),
            _coco(
                "train2014", 13_510_573_713, "ede4087e640bddba550e090eae701092534b554b42b05ac33f0300b984b31775", 82_783
            ),
            _coco(
                "val2014", 6_645_013_297, "fe9be816052049c34717e077d9e34aa60814a55679f804cd043e3cbee3b9fde0", 40_504
            ),
        ),
        _COCO_TERMS,
    ),
    "aro": PublicData(
        (
            _drive("visual_genome_relation.json", "visual_genome_relation.json", "1kX2iCHEv0CADL8dSO1nMdW-V0NqIAiP3"),
            _drive(
                "visual_genome_attribution.json", "visual_genome_attribution.json", "13tWvOrNOLHxl3Rm9cR3geAdHx2qR3-Tw"
            ),
            _drive("images", "vgr_vga_images.zip", "1qaPlrwhGNMrR3a11iopZUT_GPP_LrgP9", count=1),
        ),
        "ARO's code and captions: MIT. The photographs are Visual Genome's; see its terms.",
    ),
    "sugarcrepe": PublicData(
        (
            _sugarcrepe("add_att", "012d88d729693d193760e6f3393b06a1cf874380a9db0062e937201199fe044d"),
            _sugarcrepe("add_obj", "1b9d76b93139a937b8dc1ada92a4f05ecc821bb3c291d752428bafadd4bb0682"),
            _sugarcrepe("replace_att", "9fe55fd4c0a9ad1f85d486d9f6d0215b41f867eb025026e7f7b5ce44352545ee"),
            _sugarcrepe("replace_obj", "9d299600639947e9d15281a9ded1382b376cf4ea088a8d08a1314bfe76e81898"),
            _sugarcrepe("replace_rel", "356bcc2fc4c6aed3f4d9fd50acc58489bb1fe70c28791f9368d4cbf9ea39cdc9"),
            _sugarcrepe("swap_att", "7a7ce04e5c4c80412b48c6f0c1347fb1a2f5d54c0be6aa429b64d390e442f8d0"),
            _sugarcrepe("swap_obj", "073cdb8e253d053614e80710834d9773b09dbc1dd0a412f6f9492262caa1dcad"),
            _coco("val2017", 815_585_330, "4f7e2ccb2866ec5041993c9cf2a952bbed69647b115d0f74da7ce8f4bef82f05", 5_000),
        ),
        f"SugarCrepe's captions: MIT. {_COCO_TERMS}",
    ),
    "winoground": PublicData(
        (
            Part("examples.jsonl", "data/examples.jsonl", "facebook/winoground", step=_WINOGROUND_STEP),
            Part("images", "data/images.zip", "facebook/winoground", count=800, step=_WINOGROUND_STEP),
        ),
        "Those on its page of the Hub, which you accept there.",
    ),
}


def get(part: Part, folder: Path) -> None:
    """Fetch a part into a folder, unless it is there; an archive is deleted once it is unpacked.

    Raises:
        UserError: If a person must fetch it first, or what arrived is not what it should be.
        RunStopped: If the download breaks off; the same call resumes it.
    """
    if part.is_there(folder):
        return
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / part.file
    if not file.is_file():
        if "://" not in part.source:
            _from_hub(part, folder)
        elif part.step is not None:
            raise UserError(f"{part.source}: {part.step}: {file}. Then type the command again.")
        else:
            _download(part, file)
    if file.name == Path(part.name).name:
        file.replace(folder / part.name)
        return
    _unpack(part, file, folder)
    file.unlink()


def _download(part: Part, file: Path) -> None:
    """Download a file; what an interrupted download left in `FILE.part` is continued."""
    draft = file.with_name(f"{file.name}.part")
    try:
        with draft.open("ab") as out:
            check_room(file.parent, max((part.size or 0) - out.tell(), 0))
            http_get(part.source, out, resume_size=out.tell(), expected_size=part.size)
    except (httpx.HTTPError, HfHubHTTPError, OSError) as error:  # OSError: of another size than was announced
        if is_full(error):
            raise
        if isinstance(error, HfHubHTTPError) and error.response.status_code == 416:  # nothing is left to download
            draft.unlink()
        reason = " ".join(str(error).split())[:200]
        raise RunStopped(
            f"The download of {part.source} stopped: {reason}. Rerun the same command to resume."
        ) from error
    with draft.open("rb") as content:
        is_page = content.read(100).lstrip()[:1] == b"<"
        content.seek(0)
        digest = None if part.sha256 is None else hashlib.file_digest(content, "sha256").hexdigest()
    if is_page:
        draft.unlink()
        raise UserError(
            f"{part.source} answers with a web page. Open it in a browser, and save the download as {file}."
        )
    if digest != part.sha256:
        draft.unlink()
        raise UserError(
            f"{file.name} from {part.source} has the SHA-256 checksum {digest} instead of {part.sha256}; it was "
            "deleted. Type the command again to fetch it anew."
        )
    draft.replace(file)


def _unpack(part: Part, archive: Path, folder: Path) -> None:
    """Take the file or folder of a part out of an archive; other files of an existing folder stay."""
    scratch, place = folder / f".{part.name}.unpacking", folder / part.name
    shutil.rmtree(scratch, ignore_errors=True)  # of a command that was killed
    try:
        safely: Any = {"filter": "data"} if tarfile.is_tarfile(archive) else {}
        shutil.unpack_archive(archive, scratch, **safely)
        if (found := _member(part, scratch)) is None:
            raise ValueError(f"it does not hold `{part.name}`" + f" with {part.count:,} files" * bool(part.count))
        for path in found.iterdir() if place.is_dir() else ():
            path.replace(place / path.name)
        if not place.is_dir():
            found.replace(place)
    except (shutil.ReadError, ValueError, EOFError, OSError) as error:
        if is_full(error):
            raise
        reason = str(error).partition("\n")[0].rstrip(".:")
        raise UserError(f"{archive} cannot be unpacked: {reason}. Delete it, and type the command again.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _member(part: Part, scratch: Path) -> Path | None:
    """Find a file, or the folder with enough files, in what an archive held."""
    found = [path for path in (*scratch.rglob(part.name), scratch) if path.is_dir() == (part.count > 0)]
    return next((path for path in found if not part.count or len(os.listdir(path)) >= part.count), None)


def _from_hub(part: Part, folder: Path) -> None:
    try:
        hf_hub_download(part.source, part.file, repo_type="dataset", local_dir=folder)
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403, 404):  # gated, or hidden from who is not logged in
            raise UserError(f"`{part.source}` needs a login (HTTP {status}). {part.step}.") from error
        raise RunStopped(f"The Hub answered with HTTP {status}; the same command resumes.") from error
    except (httpx.TransportError, LocalEntryNotFoundError) as error:
        raise RunStopped(f"The Hub cannot be reached ({error}); the same command resumes.") from error
