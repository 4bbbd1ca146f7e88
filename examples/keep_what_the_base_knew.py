"""Train on records, blend the result with its base, and measure what is gained and what is kept.

    python examples/keep_what_the_base_knew.py

The script makes pairs and records in the toy world, whose numbers say nothing about photographs. For real data, change
PAIRS, OTHER (data that the base is good at), MODEL, RECORDS and the configuration.
"""

from repair_hf import RepairConfig, evaluate, export_blend, load_pairs, load_records, train
from repair_hf.cli.main import main as repair_hf

PAIRS, OTHER, RECORDS = "runs/examples/world", "runs/examples/web", "runs/examples/records"
MODEL, TUNED, BLEND = "world/base", "runs/examples/tuned", "runs/examples/blend"


def main() -> None:
    # Make pairs and records in the toy world, and pictures of the domain that its base was pretrained on.
    repair_hf(["world", "build", "--train", "300", "--validation", "20", "--test", "200", "--output", PAIRS])
    web = ["--domain", "web", "--train", "1", "--validation", "1", "--test", "200", "--seed", "1"]
    repair_hf(["world", "build", *web, "--output", OTHER])
    both = ["--pairs", PAIRS, "--model", MODEL]
    repair_hf(["mine", *both, "--max-queries", "200", "--output", "runs/examples/failures"])
    words = ["--failures", "runs/examples/failures", "--llm", "world/oracle", "--editor", "world"]
    repair_hf(["synthesize", *both, *words, "--output", RECORDS])

    config = RepairConfig(TUNED, learning_rate=3e-4, per_device_train_batch_size=64, max_steps=20)
    train(MODEL, load_pairs(PAIRS), load_records(RECORDS), config)
    export_blend(TUNED, MODEL, 0.8, BLEND)  # choose the weight on a validation split

    pairs, other = (load_pairs(place, split="test") for place in (PAIRS, OTHER))
    for name, found in evaluate([MODEL, TUNED, BLEND], pairs, also={"web": other}).items():
        gained, kept = (100 * found[f"{prefix}t2i_R@1"] for prefix in ("", "web_"))
        print(f"{name}: T2I R@1 {gained:.1f} here, {kept:.1f} on the base's own domain")


if __name__ == "__main__":
    main()
