"""Mine the failures of a model of sentence-transformers, repair them, and train the model on their triplets.

    python examples/train_sentence_transformer.py

Needs `pip install 'repair-hf[sentence-transformers]'`. The script works in the toy world. For real data, change the
model, PAIRS and the arguments, and leave out the first step.
"""

from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Transformer

from repair_hf.cli.main import main as repair_hf
from repair_hf.encoder.shipped import BASE

FLOAT32 = {"dtype": "float32"}  # trained in the precision of the file, float16, a model diverges
FOLDER = "runs/examples/triplets-run"
NAMES = ("world", "model", "records", "triplets", "trained")
PAIRS, MODEL, RECORDS, TRIPLETS, TRAINED = (f"{FOLDER}/{name}" for name in NAMES)


def main() -> None:
    repair_hf(["world", "build", "--train", "40", "--validation", "10", "--test", "20", "--output", PAIRS])

    # For real data: SentenceTransformer("sentence-transformers/clip-ViT-B-32", model_kwargs=FLOAT32)
    model = SentenceTransformer(modules=[Transformer(str(BASE), model_kwargs=FLOAT32)])
    model.save_pretrained(MODEL)
    both = ["--pairs", PAIRS, "--model", MODEL]  # sentence-transformers does the encoding
    repair_hf(["mine", *both, "--max-queries", "4", "--output", f"{FOLDER}/failures"])
    words = ["--failures", f"{FOLDER}/failures", "--llm", "world/oracle", "--editor", "world"]
    repair_hf(["synthesize", *both, *words, "--output", RECORDS])
    repair_hf(["export", "triplets", "--records", RECORDS, "--pairs", PAIRS, "--output", TRIPLETS])

    # One dataset for each modality of the anchor; the trainer draws batches from both.
    data = {name: load_dataset(TRIPLETS, name, split="train") for name in ("text_to_image", "image_to_text")}
    arguments = SentenceTransformerTrainingArguments(
        f"{FOLDER}/checkpoints",
        per_device_train_batch_size=16,  # as large as possible: the cached loss encodes it in mini-batches
        learning_rate=1e-5,
        max_steps=5,  # leave it out
        report_to="none",
        save_strategy="no",
    )
    loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=8)
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss).train()
    model.save_pretrained(TRAINED)
    repair_hf(["evaluate", MODEL, TRAINED, "--pairs", PAIRS, "--output", f"{FOLDER}/evaluate"])


if __name__ == "__main__":
    main()
