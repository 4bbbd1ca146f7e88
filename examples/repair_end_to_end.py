"""Repair a retriever in Python: mine, synthesize, train, evaluate.

    python examples/repair_end_to_end.py

For your own data, change the names in capitals, and leave out the first step.
"""

from transformers import AutoModel, AutoProcessor

from repair_hf import RepairConfig, RepairTrainer, evaluate, load_pairs, mine, synthesize
from repair_hf.cli.main import main as repair_hf
from repair_hf.encoder.shipped import locate

PAIRS = "runs/examples/world"  # your folder, table, caption JSON or Hub id
MODEL = locate("world/base")  # openai/clip-vit-base-patch32, or a folder
LLM = "world/oracle"  # gemini/gemini-3.5-flash-lite, or hosted_vllm/NAME with llm_base_url=
EDITOR = "world"  # black-forest-labs/FLUX.2-klein-4B
OUTPUT = "runs/examples/repaired"
# For real data: learning_rate=1e-5, per_device_train_batch_size=128, num_train_epochs=5, and no max_steps.
TRAINING = {"learning_rate": 3e-4, "per_device_train_batch_size": 32, "max_steps": 20}


def main() -> None:
    # Draw a small toy world.
    repair_hf(["world", "build", "--train", "120", "--validation", "20", "--test", "40", "--output", PAIRS])

    pairs, validation, test = (load_pairs(PAIRS, split=split) for split in ("train", "validation", "test"))
    model, processor = AutoModel.from_pretrained(MODEL), AutoProcessor.from_pretrained(MODEL)

    # 1. The wrong answers that the model ranks highest.
    failures = mine(model, pairs, processor=processor, max_queries=50)
    print(f"{len(failures):,} false positives")

    # 2. Their minimal edits. The same call resumes after an interruption, and pays for no answer that has arrived.
    records = synthesize(
        failures, pairs, model, llm=LLM, editor=EDITOR, output=f"{OUTPUT}/records", processor=processor, max_usd=5
    )
    print(f"{len(records):,} records, such as: {records[0]['edit_instruction']}")

    # 3. Fine-tune twice, from the same base for as many steps: on the pairs alone, then on pairs and records.
    for name, used in {"plain": None, "repaired": records}.items():
        trainer = RepairTrainer(
            model=MODEL, args=RepairConfig(f"{OUTPUT}/{name}", **TRAINING), train_dataset=pairs, records=used,
            eval_dataset=validation,
        )  # fmt: skip
        trainer.train()  # keeps the best epoch on the validation split

    # 4. What do the records add? `compared` has intervals too.
    compared = evaluate([MODEL, f"{OUTPUT}/plain", f"{OUTPUT}/repaired"], test, output=f"{OUTPUT}/compared")
    for name, metrics in compared.items():
        print(f"{name}: R@1 I2T {metrics['i2t_R@1']:.1%}, T2I {metrics['t2i_R@1']:.1%}")


if __name__ == "__main__":
    main()
