"""What we would do with 10,000 photographs and a CLIP, and why.

    python examples/ten_thousand_photographs.py

As it stands, the script runs in the toy world with few pictures. For photographs, change what is in capitals. The
reasons name what we measured in the toy world (docs/study.md, docs/training.md); photographs we have not run.
"""

from repair_hf.cli.main import main as repair_hf

DATA, OTHER = "runs/examples/world", "runs/examples/web"  # your pairs; and pairs that the base is good at
MODEL = "world/base"  # openai/clip-vit-base-patch32
LLM = ["--llm", "world/oracle"]  # ["--llm", "gemini/gemini-3.5-flash-lite", "--max-usd", "50"]
EDITOR = ["--editor", "world"]  # black-forest-labs/FLUX.2-klein-4B, on your own GPU
QUERIES, CASES = "60", "20"  # 3000 and 1000
# Photographs: "1e-5", "--num-train-epochs", "5"; find both with `repair-hf study`, see docs/training.md
HOW = ["--learning-rate", "3e-4", "--num-train-epochs", "1", "--per-device-train-batch-size", "32"]
RUNS = "runs/examples/photographs"


def run(*words: str) -> None:
    """Run a command of `repair-hf`; a repeated one goes on where it stopped."""
    if status := repair_hf(list(words)):
        raise SystemExit(status)


def main() -> None:
    # The toy world in place of photographs: leave this out.
    run("world", "build", "--train", "120", "--validation", "20", "--test", "40", "--output", DATA)
    web = ("--domain", "web", "--train", "1", "--validation", "1", "--test", "40", "--seed", "1")
    run("world", "build", *web, "--output", OTHER)
    data, base = ("--pairs", DATA), ("--model", MODEL)

    # 1. The test first, from pictures that nothing is trained on. Its cases were chosen by no retriever, so no model
    #    has an advantage. Captions alone ask the LLM and no editor.
    run("contrast", *data, *LLM, "--max-items", CASES, "--output", f"{RUNS}/contrast")

    # 2. Repair a part: edits are what costs. `--failures-only` leaves out queries that the base answers correctly.
    run("mine", *data, *base, "--max-queries", QUERIES, "--output", f"{RUNS}/failures")
    repair = ("synthesize", *data, *base, "--failures", f"{RUNS}/failures", "--failures-only", *LLM, *EDITOR)
    run(*repair, "--dry-run", "--output", f"{RUNS}/records")  # what it costs at most
    run(*repair, "--output", f"{RUNS}/records")

    # 3. Train twice, each at its best learning rate of a study. Plain training is the baseline: it gains recall, too.
    #    Without other options: the edits stand in the batch. Blended, because the tuned model alone forgets more.
    train = ("train", *data, *base, *HOW, "--eval-strategy", "epoch", "--blend", "0.8")
    run(*train, "--output", f"{RUNS}/plain")
    run(*train, "--records", f"{RUNS}/records", "--output", f"{RUNS}/repaired")

    # 4. What is gained, what is kept of OTHER, and whether the difference is larger than chance.
    models = (MODEL, f"{RUNS}/plain", f"{RUNS}/repaired")
    run("evaluate", *models, *data, "--also", OTHER, "--contrast", f"{RUNS}/contrast", "--output", f"{RUNS}/evaluate")


if __name__ == "__main__":
    main()
