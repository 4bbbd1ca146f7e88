"""Train on records from the Hub, without any LLM or image editor.

    python examples/train_from_hub.py [RECORDS PAIRS]

RECORDS and PAIRS are Hub ids or folders, such as me/photos-repair and me/photos. Without them the script makes both
in the toy world. For real data, also change MODEL and the configuration.
"""

import sys

from repair_hf import DualEncoder, RepairConfig, evaluate_retrieval, load_pairs, load_records, train
from repair_hf.cli.main import main as repair_hf

MODEL = "world/base"  # the retriever that the records were made with
RECORDS, PAIRS = sys.argv[1:] or ("runs/examples/records", "runs/examples/world")


def main() -> None:
    config = RepairConfig(
        "runs/examples/from-hub",
        learning_rate=3e-4,  # 1e-5 for a pretrained CLIP
        per_device_train_batch_size=32,  # 128 or more
        max_steps=20,  # leave it out
    )

    if not sys.argv[1:]:  # make pairs and records in the toy world
        repair_hf(["world", "build", "--train", "120", "--validation", "20", "--test", "40", "--output", PAIRS])
        both = ["--pairs", PAIRS, "--model", MODEL]
        repair_hf(["mine", *both, "--max-queries", "50", "--output", "runs/examples/failures"])
        words = ["--failures", "runs/examples/failures", "--llm", "world/oracle", "--editor", "world"]
        repair_hf(["synthesize", *both, *words, "--output", RECORDS])

    # `pairs=` restores images that were left out of the records, by id.
    pairs = load_pairs(PAIRS)
    records = load_records(RECORDS, pairs=pairs)  # revision="round-1" for a tag
    print(f"{len(records):,} records of {len(pairs.images):,} images")

    summary = train(MODEL, pairs, records, config)
    print(f"{summary['steps']} steps, which used {summary['edits_trained']:.1%} of the edits")

    test = load_pairs(PAIRS, split="test")
    for model in (MODEL, config.output_dir):
        images, texts = DualEncoder.from_pretrained(model).embed_pairs(test)
        metrics = evaluate_retrieval(images, texts, test.caption_image)
        print(f"{model}: R@1 {metrics['i2t_R@1']:.1%} (I2T), {metrics['t2i_R@1']:.1%} (T2I)")


if __name__ == "__main__":
    main()
