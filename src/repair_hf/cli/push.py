"""`repair-hf push records|model`: upload a folder of `repair-hf synthesize` or `train` to the Hub, with a card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from repair_hf.runtime.options import Bounded, need, opt
from repair_hf.runtime.redaction import printable

if TYPE_CHECKING:
    from repair_hf.hub.files import Parcel

EPILOG = """examples:
  repair-hf push records runs/records --repo me/photos-repair --private --tag round-1
  repair-hf push model runs/train --repo me/clip-repair --results runs/evaluate

Log in with `hf auth login`, or set HF_TOKEN. A push is one commit: if it fails, nothing changes on the Hub. Rerun to
resume."""


@dataclass
class PushOptions(Bounded):
    _argument_group_name = "push"

    folder: str = need("Folder to upload.")
    repo: str = need("Id on the Hub, such as me/x-repair; created if missing.")
    private: bool = opt(False, "Make the repository private.")
    tag: str | None = opt(None, "Tag of this revision, such as round-1.")
    license: str | None = opt(None, "License of the upload, as the Hub's identifier, such as cc-by-4.0.")
    dry_run: bool = opt(False, "Print the files, their sizes and the card, and upload nothing.")


@dataclass
class RecordsOptions(PushOptions):
    embed_source_images: bool = opt(True, "Include the images of queries, ground truths and false positives.")
    judgements: list[str] = opt([], "Files of judgements that pages of `repair-hf annotate` saved, for the card.")


@dataclass
class ModelOptions(PushOptions):
    """How a model is uploaded, and what its card compares it with."""

    results: str | None = opt(
        None, "Folder of `repair-hf evaluate` with this model, best after its base and one trained without records."
    )


def records(options: RecordsOptions) -> None:
    """Upload a folder of records."""
    from repair_hf.hub.files import pack_records

    _push(pack_records, options, embed_source_images=options.embed_source_images, judgements=options.judgements)


def model(options: ModelOptions) -> None:
    """Upload a trained model."""
    from repair_hf.hub.files import pack_model

    _push(pack_model, options, results=options.results)


def _push(pack: Callable[..., Parcel], options: PushOptions, **own: Any) -> None:
    """Pack a folder and push it, or print what would be pushed."""
    from repair_hf.hub.push import push

    with TemporaryDirectory(prefix="repair-hf-") as scratch:
        parcel = pack(options.folder, options.repo, scratch=scratch, license=options.license, **own)
        sizes = parcel.sizes
        total = f"{len(sizes)} files, {_megabytes(sum(sizes.values()))}"
        if options.dry_run:
            for path, size in sizes.items():
                print(f"{_megabytes(size):>12}   {path}")
            card = "\n".join(map(printable, parcel.card.split("\n")))
            print(f"\n{card}\nwould push {total} to {options.repo}; nothing was sent.")
            return
        pushed = push(parcel, options.repo, private=options.private, tag=options.tag)
    what = total if pushed.is_new else "nothing has changed there"
    tag = f" = {options.tag}" if options.tag else ""
    print(f"push    {what}, revision {pushed.revision[:8]}{tag}   -> {pushed.url}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"


ACTIONS = {"records": ((RecordsOptions,), records), "model": ((ModelOptions,), model)}
