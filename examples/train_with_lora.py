"""Train LoRA adapters of the text tower in place of all weights, and load them.

    python examples/train_with_lora.py

Needs `pip install 'repair-hf[peft]'`. The script makes pairs and records in the toy world. For real data, change
PAIRS, MODEL and RECORDS (folders or Hub ids) and the configuration. `freeze="image"` in place of the two lora options
trains the whole text tower, and leaves the image tower as it is.
"""

from repair_hf import DualEncoder, RepairConfig, RepairTrainer, evaluate_retrieval, load_pairs, load_records
from repair_hf.cli.main import main as repair_hf

PAIRS, RECORDS, MODEL = "runs/examples/world", "runs/examples/records", "world/base"


def main() -> None:
    # Make pairs and records in the toy world.
    repair_hf(["world", "build", "--train", "120", "--validation", "20", "--test", "40", "--output", PAIRS])
    both = ["--pairs", PAIRS, "--model", MODEL]
    repair_hf(["mine", *both, "--max-queries", "50", "--output", "runs/examples/failures"])
    words = ["--failures", "runs/examples/failures", "--llm", "world/oracle", "--editor", "world"]
    repair_hf(["synthesize", *both, *words, "--output", RECORDS])

    config = RepairConfig(
        "runs/examples/lora",
        lora_rank=8,
        lora_towers="text",  # the embeddings of images stay those of the base, and need not be made again
        learning_rate=2e-3,  # higher than for all weights
        per_device_train_batch_size=32,  # 128 or more
        max_steps=20,  # leave it out
        logging_steps=5,
    )
    # For adapters of your own, pass `peft_config=LoraConfig(...)` and leave the lora options out.
    trainer = RepairTrainer(MODEL, config, load_pairs(PAIRS), records=load_records(RECORDS))
    trainer.train()
    sizes = [weights.numel() for weights in trainer.model.parameters() if weights.requires_grad]
    print(f"{sum(sizes):,} of {trainer.model.num_parameters():,} parameters were trained")

    # The folder holds the adapter and the name of its base. It loads as any model does, also as --model.
    test = load_pairs(PAIRS, split="test")
    for model in (MODEL, config.output_dir):
        images, texts = DualEncoder.from_pretrained(model).embed_pairs(test)
        metrics = evaluate_retrieval(images, texts, test.caption_image)
        print(f"{model}: R@1 {metrics['i2t_R@1']:.1%} (I2T), {metrics['t2i_R@1']:.1%} (T2I)")


if __name__ == "__main__":
    main()
