"""Small photographs that libraries carry, cut into parts, and a scripted LLM that repairs whatever they show."""

import json
from pathlib import Path

import matplotlib
import pytest
from PIL import Image


def cut(folder: Path, across: int, down: int) -> dict[str, str]:
    """Write the parts of three photographs as JPEG files into a folder, and return the caption of each by its name."""
    sklearn = pytest.importorskip("sklearn", reason="scikit-learn carries two of the photographs")
    images = Path(sklearn.__file__).parent / "datasets" / "images"
    photographs = {
        "a woman in uniform before a flag": Path(matplotlib.get_data_path(), "sample_data", "grace_hopper.jpg"),
        "a temple by the water": images / "china.jpg",
        "a pink flower": images / "flower.jpg",
    }
    captions = {}
    for caption, path in photographs.items():
        photograph = Image.open(path)
        width, height = photograph.width // across, photograph.height // down
        for number in range(across * down):
            left, top = number % across * width, number // across * height
            name = f"{path.stem}-{number}.jpg"
            photograph.crop((left, top, left + width, top + height)).save(folder / name)
            captions[name] = f"Part {number % across + 1} of row {number // across + 1} of {caption}."
    return captions


def scripted(body: dict) -> str:
    """Accept every false positive, and edit one word."""
    text = json.dumps(body["messages"])
    if "Edit instruction: " in text:
        return json.dumps({"answer": f"The middle of something else, number {body['seed'] % 1000}."})
    if "gt_valid" in text:
        verdict = {"gt_reason": "It fits.", "gt_valid": True, "fp_reason": "It does not.", "fp_too_similar": False}
        return json.dumps(verdict)
    if "Query caption: " in text:
        return json.dumps({"edit_instruction": "Make the light warmer and keep everything else."})
    instruction = "It shows another thing. Therefore, replace 'a' with 'one'."
    return json.dumps({"error_types": ["Object"], "edit_instruction": instruction})
