"""`repair-hf study`: compare methods on the same data, retriever, LLM, editor and budget, in one table.

Without `--pairs` it runs in the toy world. Writes `study.md` with its tables as CSV, `results.parquet` and `rows/`
(what each training measured), a folder of what methods train on, `ledger.sqlite` and `candidates/` (what was paid).
The same command resumes, and pays for no answer that has arrived.
"""

from __future__ import annotations

from functools import partial

from repair_hf.cli.subcommands import print_table
from repair_hf.runtime.processes import refuse_several
from repair_hf.study.options import StudyEditorOptions, StudyLLMOptions, StudyOptions, StudyPairsOptions

EPILOG = """examples:
  repair-hf study --size tiny --methods negclip repair-batch --output runs/study-tiny
  repair-hf study --config recipes/study/small.yaml
  repair-hf study --config recipes/study/flickr30k.yaml --dry-run
  repair-hf study --pairs data/mine --model openai/clip-vit-base-patch32 --records runs/records --test-split validation
  repair-hf study --table runs/small/results.parquet runs/large/results.parquet --output runs/tables

You can stop it at any time: the same command resumes. You can add --methods, --seeds or --budgets later. To use
several cores or GPUs, run the command several times at once, with OMP_NUM_THREADS=1 or a CUDA_VISIBLE_DEVICES of its
own: a process skips what another is working on."""

OPTIONS = (StudyOptions, StudyPairsOptions, StudyLLMOptions, StudyEditorOptions)


def run(options: StudyOptions, pairs: StudyPairsOptions, llm: StudyLLMOptions, editor: StudyEditorOptions) -> None:
    """Run the study, or print what it asks at most."""
    refuse_several("study")
    from repair_hf.study.estimate import HEADS, price
    from repair_hf.study.run import study
    from repair_hf.study.statistics import MEASURES

    if options.dry_run:
        rows, note = price(options, pairs, llm, editor)
        print_table(HEADS, rows)
        return print(note)
    for section in study(options, pairs, llm, editor, partial(print, flush=True)):
        if section.table is None:
            print(f"{section.title}: {section.note}")
        elif section.name.startswith("summary"):  # what fits 80 columns: `study.md` has the rest
            heads = ["method", *MEASURES, "score, gain"]
            print(f"\n{section.title}")
            print_table(heads, section.table[heads].to_numpy().tolist())
            print(section.note)
    print(f"\n-> {options.output}/study.md")
