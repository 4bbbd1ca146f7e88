"""The examples of the docstrings run in the toy world, in a folder with the data and runs that they name."""

import contextlib
import doctest
import importlib
import json
import pkgutil
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from datasets import load_dataset
from repaired_world import copy_linked

import repair_hf
from repair_hf.evaluation.intervals import interval
from repair_hf.mining.failures import load_failures
from repair_hf.records.dataset import save_records

PUBLIC = (
    "Pairs RepairConfig RepairTrainer DualEncoder contrast_set load_pairs load_records mine synthesize train".split()
)
HERE = {  # what an example names -> what stands for it
    '"openai/clip-vit-base-patch32"': '"world/base"',
    'RepairConfig("tuned")': 'RepairConfig("tuned", max_steps=1, per_device_train_batch_size=8)',
    'output="runs/records"': 'output="runs/other-records"',
    'output="runs/contrast"': 'output="runs/other-contrast"',
}
ELSEWHERE = ("push_to_hub", "load_parser")  # tests/hub pushes; spaCy's model is not on the package index
SHOWN = (  # outputs of other data
    "encoder.pixel_store.PixelStore",
    "evaluation.contrast.load_contrast",
)


def modules() -> Iterator[ModuleType]:
    for each in pkgutil.walk_packages(repair_hf.__path__, "repair_hf."):
        if not each.name.endswith("__main__"):
            with contextlib.suppress(ModuleNotFoundError):  # an extra that is not installed
                yield importlib.import_module(each.name)


def examples() -> Iterator[doctest.DocTest]:
    """Yield the tests of all docstrings, as they run here."""
    parser, finder = doctest.DocTestParser(), doctest.DocTestFinder(exclude_empty=True)
    for module in modules():
        for test in finder.find(module, module.__name__, module=module):
            name, text = test.name.removeprefix("repair_hf."), test.docstring
            if not test.examples or any(f"{word}(" in line.source for line in test.examples for word in ELSEWHERE[1:]):
                continue
            for word, other in HERE.items():
                text = text.replace(word, other)
            yield parser.get_doctest(text, vars(module), name, test.filename, test.lineno)


EXAMPLES = {test.name: test for test in examples()}


class RunsOrAgrees(doctest.OutputChecker):
    """An example without output need only run."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


@pytest.fixture(scope="module")
def names(repaired_world, tmp_path_factory) -> Iterator[dict]:
    """What the examples call by name. They run in a folder with `photos`, `data/mine` and `runs`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("reader"))
        copy_linked(repaired_world, Path("runs"))
        Path("runs/demo").mkdir()
        Path("runs/demo/records").symlink_to(Path("runs/records").resolve())
        Path("runs/train").symlink_to(Path("runs/repaired").resolve())
        Path("data").mkdir()
        Path("data/mine").symlink_to(Path("runs/world").resolve())
        Path("photos").mkdir()
        with Path("photos/metadata.jsonl").open("w") as table:
            for number, line in enumerate(Path("runs/world/captions.jsonl").read_text().splitlines()):
                row, name = json.loads(line), f"{number}.png"  # a file named after a split would be one to `datasets`
                shutil.copyfile(Path("runs/world/images", row["image"]), Path("photos", name))
                table.write(json.dumps({"file_name": name, "captions": row["captions"]}) + "\n")
        have = {name: getattr(repair_hf, name) for name in PUBLIC}
        pairs, validation = (have["load_pairs"]("runs/world", split=split) for split in ("train", "validation"))
        encoder = have["DualEncoder"].from_pretrained("world/base")
        yield have | {
            "pairs": pairs,
            "validation": validation,
            "failures": load_failures("runs/failures").select(range(20)),
            "records": have["load_records"]("runs/records"),
            "encoder": encoder,
            "model": encoder.model,
            "processor": encoder.preprocessor,
            "preprocessor": encoder.preprocessor,
            "before": np.zeros(6),
            "after": np.ones(6),
            "image": np.arange(6) // 2,
            "save_records": save_records,
            "interval": interval,
            "load_dataset": load_dataset,
            "np": np,
            "torch": torch,
        }


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_a_docstring_runs(name, names):
    test = EXAMPLES[name]
    test.examples = [line for line in test.examples if not any(word in line.source for word in ELSEWHERE)]
    for line in test.examples:
        line.want = "" if name in SHOWN else line.want
    test.globs |= names
    reports = []
    runner = doctest.DocTestRunner(RunsOrAgrees(), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    results = runner.run(test, out=reports.append)
    assert results.attempted and not results.failed, "".join(reports)
