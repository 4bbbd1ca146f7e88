"""`repair-hf synthesize`: failures in, records out.

In:  pairs, the failures mined from them, the retriever, an LLM and an image editor by id.
Out: a folder with the configs `records` and `dropped`, the LLM's journal, the candidate images and `summary.json`.
"""

from __future__ import annotations

import hashlib
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repair_hf.options import PairsOptions, StageOptions, UserError, as_flags, need, opt

EPILOG = """examples:
  repair-hf synthesize --pairs runs/world --failures runs/failures --model world/base \\
      --llm world/oracle --editor world --output runs/records
  repair-hf synthesize --pairs annotations.json --image-folder train2014 --failures runs/failures \\
      --model openai/clip-vit-base-patch32 --llm gemini/gemini-2.5-flash \\
      --editor black-forest-labs/FLUX.2-klein-9B --output runs/records --dry-run

Stop it whenever you like; the same command goes on from there and asks nothing twice that was answered."""


@dataclass
class SynthesizeOptions:
    """What to repair, and by which models."""

    _argument_group_name = "synthesize"

    failures: str = need("Folder of `repair-hf mine`, or a Parquet file of failures.")
    model: str = need("The retriever that failed, which chooses among the candidates: Hub id, folder, or world/base.")
    llm: str = need(
        "Audits, instructs and edits captions: a LiteLLM id, or world/oracle for the toy world (litellm:world/oracle goes through LiteLLM)."
    )
    editor: str = need("Edits images: a diffusers Hub id or folder, or `world` for the toy world.")
    llm_base_url: str | None = opt(None, "Endpoint of a server that speaks the protocol of --llm's provider.")
    candidates: int = opt(3, "Edits made of each false positive; the one nearest to it is kept.")
    attach_image: bool = opt(False, "Show the query image to the LLM that edits a caption.")
    concurrency: int = opt(16, "LLM requests under way at once.")
    seed: int = opt(0, "Seed of the LLM's and the editor's draws.")
    embed_source_images: bool = opt(True, "Store the images of query, ground truth and false positive in the records.")
    verdict_noise: float = opt(0.0, "Toy world: share of audits that come to the opposite verdict.")
    malformed_rate: float = opt(0.0, "Toy world: share of answers that are broken JSON.")
    drift: float = opt(0.0, "Toy world: share of edited images in which too much changes.")

    def __post_init__(self) -> None:
        for name in ("candidates", "concurrency"):
            if vars(self)[name] < 1:
                raise UserError(f"`{name}` must be at least 1, got {vars(self)[name]}.")
        for name in ("verdict_noise", "malformed_rate", "drift"):
            if not 0 <= vars(self)[name] <= 1:
                raise UserError(f"`{name}` is a share between 0 and 1, got {vars(self)[name]}.")
        if (self.verdict_noise or self.malformed_rate) and not (
            _is_oracle(self) or self.llm == "litellm:world/oracle"
        ):
            raise UserError(
                "`verdict_noise` and `malformed_rate` are faults of the toy world's oracle; use them with --llm world/oracle."
            )
        if self.drift and self.editor != "world":
            raise UserError("`drift` is a fault of the toy world's editor; use it with --editor world.")


OPTIONS = (PairsOptions, StageOptions, SynthesizeOptions)


def run(pairs_options: PairsOptions, stage: StageOptions, options: SynthesizeOptions) -> None:
    """Repair the failures, or say what that would take."""
    from datasets import Dataset
    from pyarrow.parquet import read_table

    from repair_hf.encoder import DualEncoder
    from repair_hf.pairs import load_pairs
    from repair_hf.runs import finished, open_stage
    from repair_hf.synthesis.prompts import prompt_digest
    from repair_hf.toyworld.shipped import locate

    file = _failures_file(Path(options.failures))
    failures = Dataset(read_table(file))
    if stage.dry_run:
        return _print_estimate(failures, options)
    arguments = asdict(pairs_options)
    pairs = load_pairs(arguments.pop("pairs"), **arguments)
    encoder = DualEncoder.from_pretrained(locate(options.model))
    resolved = asdict(pairs_options) | asdict(stage) | asdict(options)
    resolved |= {
        "failures_digest": hashlib.sha256(file.read_bytes()).hexdigest()[:16],
        "pairs_fingerprint": pairs.fingerprint,
        "model_digest": encoder.digest,
        "prompt_digest": prompt_digest(),
    }
    summary = finished(stage.output, resolved)
    if summary is None:
        folder = open_stage(stage.output, command="synthesize", options=resolved)
        summary = _synthesize(pairs, encoder, failures, folder, options)
    _print_summary(summary)
    print(f"synthesize took {summary['seconds']:,.0f} s   -> {stage.output}")
    words = [*as_flags(pairs_options), "--model", options.model, "--records", stage.output]
    print(f"next: repair-hf train {shlex.join(words)} --output runs/train")


def _synthesize(pairs: Any, encoder: Any, failures: Any, folder: Path, options: SynthesizeOptions) -> dict[str, Any]:
    from repair_hf.llm.client import ChatModel
    from repair_hf.llm.journal import Journal
    from repair_hf.records import save_records, summarize
    from repair_hf.runs import finish_stage
    from repair_hf.synthesis.pipeline import Synthesizer

    start = time.perf_counter()
    editor = _editor(options)
    with Journal(folder / "journal.jsonl") as journal:
        chat = ChatModel(
            _litellm_id(options),
            journal=journal,
            base_url=options.llm_base_url,
            concurrency=options.concurrency,
            provider=_oracle(options) if _is_oracle(options) else None,
        )
        synthesizer = Synthesizer(
            pairs,
            encoder,
            chat,
            editor,
            candidates=options.candidates,
            seed=options.seed,
            attach_image=options.attach_image,
        )
        records, dropped = synthesizer.run(failures, folder)
    save_records(folder, records, dropped, embed_source_images=options.embed_source_images)
    summary = {
        "directions": summarize(records, dropped),
        "llm": [{"stage": stage, "direction": way} | asdict(use) for (stage, way), use in sorted(chat.usage.items())],
        "images": {"made": synthesizer.images_made, "found": synthesizer.images_found},
        "seconds": time.perf_counter() - start,
    }
    finish_stage(folder, summary)
    return summary


def _failures_file(path: Path) -> Path:
    file = path / "failures.parquet" if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"--failures {path}: {file} does not exist. Make it with `repair-hf mine`.")
    return file


def _is_oracle(options: SynthesizeOptions) -> bool:
    """The oracle in this process; with an endpoint, the id is only a name that its server knows."""
    return options.llm.startswith("world/") and options.llm_base_url is None


def _litellm_id(options: SynthesizeOptions) -> str:
    """The id without `litellm:`; the oracle asked for in that way becomes one of LiteLLM's providers, as slow as any."""
    if options.llm == "litellm:world/oracle":
        from repair_hf.toyworld import oracle

        oracle.register(verdict_noise=options.verdict_noise, malformed_rate=options.malformed_rate)
    return options.llm.removeprefix("litellm:")


def _oracle(options: SynthesizeOptions) -> Any:
    from repair_hf.toyworld import oracle

    return oracle.provider(verdict_noise=options.verdict_noise, malformed_rate=options.malformed_rate)


def _editor(options: SynthesizeOptions) -> Any:
    if options.editor == "world":
        from repair_hf.toyworld.editor import WorldEditor

        return WorldEditor(drift=options.drift)
    from repair_hf.synthesis.images import load_editor

    return load_editor(options.editor)


def _print_estimate(failures: Any, options: SynthesizeOptions) -> None:
    from repair_hf.llm.cost import estimate_cost

    count = Counter(failures["direction"])
    model = None if "world/oracle" in options.llm else options.llm.removeprefix("litellm:")
    estimate = estimate_cost(count["i2t"], count["t2i"], candidates=options.candidates, model=model)
    rows = [
        (s.stage, s.direction, count[s.direction], s.llm_calls, s.image_calls, _dollars(s.dollars))
        for s in estimate.stages
    ]
    total = ("all", "", count.total(), estimate.llm_calls, estimate.image_calls, _dollars(estimate.dollars))
    _print_table(("at most", "", "triplets", "LLM calls", "images", "dollars"), [*rows, total])
    print(
        "Calls: as if every triplet passed the audit.\n"
        "Dollars: the LLM's list price for the tokens that the RePair paper reports per mined triplet of Flickr30K."
    )


def _print_summary(summary: Mapping[str, Any]) -> None:
    directions = summary["directions"]
    reasons = list(dict.fromkeys(reason for found in directions.values() for reason in found["dropped"]))
    rows = []
    for direction, found in directions.items():
        share = f"({found['kept'] / found['mined']:.1%})" if found["mined"] else ""
        similarity = "–" if found["edit_similarity"] is None else f"{found['edit_similarity']:.3f}"
        left = [found["dropped"].get(reason, 0) for reason in reasons]
        rows.append((direction, found["mined"], found["kept"], share, similarity, *left))
    heads = ("", "mined", "kept", "", "edit ~ fp", *(reason.replace("_", " ") for reason in reasons))
    _print_table(heads, rows, labels=1)
    for direction, found in directions.items():
        if found["error_types"]:
            shares = ", ".join(f"{name} {share:.1%}" for name, share in found["error_types"].items())
            print(f"errors named in {direction} instructions: {shares}")
    uses = summary["llm"]
    rows = [(use["stage"], use["direction"], *(use[name] for name in _COUNTS), _spent([use])) for use in uses]
    total = ("all", "", *(sum(use[name] for use in uses) for name in _COUNTS), _spent(uses))
    _print_table(("LLM", "", "asked", "replayed", "tokens in", "tokens out", "dollars"), [*rows, total])
    images = summary["images"]
    print(f"images: {images['made']:,} drawn, {images['found']:,} were there from an earlier run")


_COUNTS = ("calls", "replayed", "prompt_tokens", "completion_tokens")


def _print_table(heads: Sequence[str], rows: Sequence[Sequence[str | int]], *, labels: int = 2) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < labels else "right")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, str) else f"{cell:,}" for cell in row))
    Console().print(table)


def _spent(uses: Sequence[Mapping[str, Any]]) -> str:
    return _dollars(None if any(use["unpriced"] for use in uses) else sum(use["dollars"] for use in uses))


def _dollars(amount: float | None) -> str:
    return "unknown" if amount is None else f"${amount:,.2f}"
