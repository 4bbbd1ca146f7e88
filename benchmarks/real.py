"""Hold the package to a real checkpoint and, if there is a key, to a real LLM. What is missing is skipped, in a line.

    make real
    python benchmarks/real.py --llm openai/qwen --llm-base-url http://localhost:8000/v1

R@1 without training is compared with published figures on Flickr30K's or COCO's test split, where the recipes have
them; else the photographs of REPAIR_HF_PHOTOGRAPHS are embedded. Then failures are mined, and 20 of them go through
the LLM, for at most $0.10. An LLM behind --llm-base-url without a list price gives at most 200 answers.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repair_hf import evaluate_retrieval, mine_false_positives, synthesize
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.llm.cost import price_per_token
from repair_hf.llm.provider import check_key
from repair_hf.pairs.dataset import Pairs, load_wanted
from repair_hf.runtime.options import PairsOptions, UserError

MODEL, LLM = "openai/clip-vit-base-patch32", "gemini/gemini-3.5-flash-lite"
APART = 0.5  # points of R@1
FAILURES, MAX_USD, MAX_CALLS = 20, 0.10, 200


@dataclass(frozen=True)
class Data:
    """Where pairs lie, and the R@1 in percent that papers report of `MODEL` on them, without training."""

    options: PairsOptions
    published: Mapping[str, float]


def main() -> int:
    """Print a line for each check; return 1 if R@1 is not the published one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=MODEL, help="any other model is not compared with published figures")
    parser.add_argument("--llm", default=LLM)
    parser.add_argument("--llm-base-url")
    parser.add_argument("--output", default="runs/real", help="folder of the records")
    args = parser.parse_args()
    try:
        encoder = DualEncoder.from_pretrained(args.model)
    except UserError as error:
        return _skip(f"no {args.model}", error)
    found = {name: data for name, data in _data() if Path(str(data.options.pairs)).exists()}
    found = {name: data for name, data in found.items() if data.published} or found  # photographs if nothing else
    if not found:
        return _skip("no data", "needs data/flickr30k, data/coco (see recipes/) or REPAIR_HF_PHOTOGRAPHS")
    is_off = False
    for name, data in found.items():
        pairs = load_wanted(data.options)
        vectors = encoder.embed_pairs(pairs)
        metrics = evaluate_retrieval(*vectors, pairs.caption_image)
        published = data.published if args.model == MODEL else {}
        is_off |= bool(differing(metrics, published))
        print(f"{name}: {', '.join(_shown(metrics, published))}", flush=True)
    failures = mine_false_positives(*vectors, pairs.caption_image, same_text_is_positive=pairs.captions["caption"][:])
    print(f"mined {len(failures):,} failures of {name}", flush=True)
    _ask(args, failures, pairs, encoder)
    return int(is_off)


def differing(metrics: Mapping[str, float], published: Mapping[str, float]) -> dict[str, float]:
    """Return by how many points metrics, which are fractions, differ from published percents by more than `APART`."""
    apart = {name: 100 * metrics[name] - percent for name, percent in published.items()}
    return {name: points for name, points in apart.items() if abs(points) > APART}


def _shown(metrics: Mapping[str, float], published: Mapping[str, float]) -> Iterator[str]:
    for name in ("i2t_R@1", "t2i_R@1"):
        said = f" (published {published[name]})" if name in published else ""
        wrong = f" differs by more than {APART}" if differing(metrics, {name: published[name]} if said else {}) else ""
        yield f"{name} {100 * metrics[name]:.1f}{said}{wrong}"


def _ask(args: argparse.Namespace, failures: Any, pairs: Pairs, encoder: DualEncoder) -> None:
    """Repair a few captions. Images are left out: their editor needs a GPU or dollars of its own."""
    try:
        check_key(args.llm, args.llm_base_url)
    except UserError as error:
        _skip("no LLM", error)
        return
    of_captions = failures.filter(lambda row: row["direction"] == "i2t")
    few = of_captions.select(range(min(FAILURES, len(of_captions))))
    how: dict[str, Any] = {"llm_base_url": args.llm_base_url, **ceiling(args.llm, args.llm_base_url)}
    records = synthesize(few, pairs, encoder, llm=args.llm, editor="world", output=args.output, **how)
    print(f"{args.llm} made {len(records)} records of {len(few)} failures -> {args.output}")
    for row in records.select(range(min(3, len(records)))):
        print(f"  {row['fp_text']}  ->  {row['edit_text']}")


def ceiling(llm: str, base_url: str | None) -> dict[str, Any]:
    """Return the limit of what is paid: dollars, or calls of a server of one's own whose LLM has no list price."""
    has_price = price_per_token(llm) is not None
    return {"max_usd": MAX_USD} if has_price or base_url is None else {"max_calls": MAX_CALLS}


def _data() -> Iterator[tuple[str, Data]]:
    flickr, coco = Path("data/flickr30k"), Path("data/coco")
    test: dict[str, Any] = {"split": "test"}
    yield (
        "Flickr30K",
        Data(
            PairsOptions(
                str(flickr / "dataset_flickr30k.json"), str(flickr / "flickr30k-images"), benchmark="flickr30k", **test
            ),
            {"i2t_R@1": 78.8, "t2i_R@1": 58.8},
        ),
    )
    yield (
        "COCO 5K",
        Data(
            PairsOptions(str(coco / "dataset_coco.json"), str(coco), benchmark="coco", **test),
            {"i2t_R@1": 50.1, "t2i_R@1": 30.4},
        ),
    )
    yield "photographs", Data(PairsOptions(os.environ.get("REPAIR_HF_PHOTOGRAPHS", "nowhere"), split="all"), {})


def _skip(what: str, why: object) -> int:
    print(f"skipped, {what}: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
