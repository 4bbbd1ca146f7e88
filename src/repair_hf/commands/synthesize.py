"""`repair-hf synthesize`: failures in, records out.

In:  pairs, the failures mined from them, the retriever, an LLM and an image editor by id.
Out: a folder with the configs `records` and `dropped`, the LLM's journal, the candidate images and `summary.json`.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repair_hf.options import PairsOptions, StageOptions, UserError, need, opt

EPILOG = """examples:
  repair-hf synthesize --pairs runs/world --failures runs/mine --model runs/base \\
      --llm world/oracle --editor world --output runs/synthesize
  repair-hf synthesize --pairs annotations.json --image-folder train2014 --failures runs/mine \\
      --model openai/clip-vit-base-patch32 --llm gemini/gemini-2.5-flash \\
      --editor black-forest-labs/FLUX.2-klein-9B --output runs/synthesize --dry-run

Stop it whenever you like; the same command goes on from there and asks nothing twice that was answered."""


@dataclass
class SynthesizeOptions:
    """What to repair, and by which models."""

    _argument_group_name = "synthesize"

    failures: str = need("Folder of `repair-hf mine`, or a Parquet file of failures.")
    model: str = need("The retriever that failed, by Hub id or folder; it chooses among the candidates.")
    llm: str = need("Audits, instructs and edits captions: a LiteLLM id, or world/oracle for the toy world.")
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
        if (self.verdict_noise or self.malformed_rate) and not _is_oracle(self):
            raise UserError("`verdict_noise` and `malformed_rate` are faults of the toy world's oracle; use them with --llm world/oracle.")
        if self.drift and self.editor != "world":
            raise UserError("`drift` is a fault of the toy world's editor; use it with --editor world.")


OPTIONS = (PairsOptions, StageOptions, SynthesizeOptions)


def run(pairs_options: PairsOptions, stage: StageOptions, options: SynthesizeOptions) -> None:
    """Repair the failures, or say what that would take."""
    from datasets import Dataset
    from pyarrow.parquet import read_table

    from repair_hf.pairs import load_pairs
    from repair_hf.runs import finished, open_stage

    file = _failures_file(Path(options.failures))
    failures = Dataset(read_table(file))
    if stage.dry_run:
        return _print_estimate(failures, options)
    pairs = load_pairs(**_load_arguments(pairs_options))
    resolved = asdict(pairs_options) | asdict(stage) | asdict(options)
    resolved |= {"failures_digest": hashlib.sha256(file.read_bytes()).hexdigest(), "pairs_fingerprint": pairs.fingerprint}
    summary = finished(stage.output, resolved)
    if summary is None:
        folder = open_stage(stage.output, command="synthesize", options=resolved)
        summary = _synthesize(pairs, failures, folder, options)
    _print_summary(summary)
    print(f"-> {stage.output}")
    print(f"next: repair-hf train --pairs {pairs_options.pairs} --model {options.model} --records {stage.output} --output runs/train")


def _synthesize(pairs: Any, failures: Any, folder: Path, options: SynthesizeOptions) -> dict[str, Any]:
    from repair_hf.encoder import DualEncoder
    from repair_hf.llm.client import ChatModel
    from repair_hf.llm.journal import Journal
    from repair_hf.records import save_records, summarize
    from repair_hf.runs import finish_stage
    from repair_hf.synthesis.pipeline import Synthesizer
    from repair_hf.toyworld.shipped import locate

    start = time.perf_counter()
    encoder = DualEncoder.from_pretrained(locate(options.model))
    editor = _editor(options)
    with Journal(folder / "journal.jsonl") as journal:
        chat = ChatModel(
            options.llm,
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


def _load_arguments(options: PairsOptions) -> dict[str, Any]:
    values = asdict(options)
    return {"source": values.pop("pairs")} | values


def _is_oracle(options: SynthesizeOptions) -> bool:
    """The oracle in this process; with an endpoint, the id is only a name that its server knows."""
    return options.llm.startswith("world/") and options.llm_base_url is None


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
    model = None if _is_oracle(options) else options.llm
    estimate = estimate_cost(count["i2t"], count["t2i"], candidates=options.candidates, model=model)
    print(f"{'at most':<12}{'triplets':>12}{'LLM calls':>12}{'images':>12}{'dollars':>12}")
    for stage in estimate.stages:
        name = f"{stage.stage} {stage.direction}"
        triplets = count[stage.direction]
        print(f"{name:<12}{triplets:>12,}{stage.llm_calls:>12,}{stage.image_calls:>12,}{_dollars(stage.dollars):>12}")
    print(
        f"{'all':<12}{count.total():>12,}{estimate.llm_calls:>12,}{estimate.image_calls:>12,}{_dollars(estimate.dollars):>12}\n"
        "Calls as if every triplet passed the audit; dollars at list prices, with the tokens per mined triplet that the RePair paper "
        "reports for Flickr30K. What an image editor costs is not in it."
    )


def _print_summary(summary: Mapping[str, Any]) -> None:
    print(f"{'':<12}{'mined':>10}{'kept':>10}{'':>9}{'similarity':>12}  dropped")
    for direction, found in summary["directions"].items():
        share = f"({found['kept'] / found['mined']:.1%})" if found["mined"] else ""
        similarity = "-" if found["edit_similarity"] is None else f"{found['edit_similarity']:.3f}"
        dropped = ", ".join(f"{reason} {count:,}" for reason, count in found["dropped"].items()) or "none"
        print(f"{direction:<12}{found['mined']:>10,}{found['kept']:>10,}{share:>9}{similarity:>12}  {dropped}")
    for direction, found in summary["directions"].items():
        if found["error_types"]:
            print(f"{direction} errors  " + ", ".join(f"{name} {share:.1%}" for name, share in found["error_types"].items()))
    print(f"{'LLM':<12}{'asked':>10}{'replayed':>10}{'tokens in':>12}{'tokens out':>12}{'dollars':>10}")
    for use in summary["llm"]:
        name = f"{use['stage']} {use['direction']}"
        dollars = _dollars(None if use["unpriced"] else use["dollars"])
        print(
            f"{name:<12}{use['calls']:>10,}{use['replayed']:>10,}{use['prompt_tokens']:>12,}{use['completion_tokens']:>12,}{dollars:>10}"
        )
    print(f"{'images':<12}{summary['images']['made']:>10,}{summary['images']['found']:>10,}    (made, found)")
    print(f"synthesize took {summary['seconds']:,.0f} s", end="   ")


def _dollars(amount: float | None) -> str:
    return "unknown" if amount is None else f"${amount:,.2f}"
