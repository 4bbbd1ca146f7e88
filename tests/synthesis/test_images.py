"""Image editing through `diffusers`: tiny random pipelines, loaded from a folder as a Hub id would be."""

from __future__ import annotations

import warnings

import pytest
from PIL import Image
from small_world import World

from repair_hf.cli.main import main
from repair_hf.llm.prompts import draw_instruction
from repair_hf.records.dataset import load_records
from repair_hf.runtime.options import UserError
from repair_hf.synthesis.images import DiffusersEditor, check_pipeline, fit, load_editor
from repair_hf.synthesis.models import EditorOptions, check_editor

SEEDS = [7, 8, 9]


@pytest.fixture(params=["flux_folder", "pix2pix_folder"])
def editor(request) -> DiffusersEditor:
    return load_editor(str(request.getfixturevalue(request.param)), steps=2, size=64, device="cpu")


@pytest.fixture(scope="module")
def photographs() -> list[Image.Image]:
    return [
        Image.linear_gradient("L").resize((96, 72)).convert("RGB"),
        Image.radial_gradient("L").resize((60, 90)).convert("RGB"),
    ]


def near(one: Image.Image, other: Image.Image) -> bool:
    return all(abs(a - b) <= 1 for a, b in zip(one.tobytes(), other.tobytes(), strict=True))


def test_gives_one_image_per_seed_whatever_else_is_asked(editor, photographs):
    both = list(editor.edit(photographs, ["make it red", "make it blue"], [SEEDS, [5]]))
    assert [len(row) for row in both] == [3, 1]
    assert len({image.tobytes() for image in both[0]}) == 3
    (wide, *_), (tall,) = both
    assert wide.width > wide.height and tall.width < tall.height
    ((second,),) = editor.edit(photographs[:1], ["make it red"], [[SEEDS[1]]])
    assert near(second, both[0][1])
    ((other,),) = editor.edit(photographs[1:], ["make it blue"], [[5]])
    assert near(other, both[1][0])


def test_draws_from_text_alone(flux_folder, photographs):
    """In a batch and alone, beside edits; what is drawn depends on the caption and the source's size alone."""
    one, many = (load_editor(str(flux_folder), steps=2, size=64, batch_size=size, device="cpu") for size in (1, 8))
    words = [draw_instruction("two cats"), "make it red", draw_instruction("a dog")]
    wide = photographs[0]
    other = Image.new("RGB", wide.size, "green")
    rows = [list(editor.edit([wide, wide, other], words, [[1, 2]] * 3)) for editor in (one, many)]
    for alone, together in zip(*rows, strict=True):
        assert all(near(*pair) for pair in zip(alone, together, strict=True))
    ((drawn, _),) = one.edit([other], words[:1], [[1, 2]])
    assert near(drawn, rows[0][0][0]) and drawn.tobytes() != rows[0][1][0].tobytes()


def test_an_editor_that_cannot_draw_is_named_at_once(flux_folder, pix2pix_folder):
    assert check_pipeline(str(flux_folder), from_text=True) == str(flux_folder)
    with pytest.raises(UserError, match="InstructPix2PixPipeline: it edits images but cannot draw from text alone"):
        check_editor(EditorOptions(str(pix2pix_folder)), from_text=True)


def test_is_quiet(editor, photographs, caplog):
    from diffusers.utils import logging as diffusers_logging

    diffusers_logging.enable_propagation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(editor.edit(photographs[:1], ["make it red"], [SEEDS]))
    assert not caplog.records


def test_a_sliver_cannot_be_edited(editor):
    assert list(editor.edit([Image.new("RGB", (900, 100))], ["make it red"], [SEEDS])) == [[None] * 3]


def test_a_black_image_is_none(pix2pix_folder, photographs, monkeypatch):
    """Either the safety checker blacked it out, or numbers overflowed in half precision."""
    editor = load_editor(str(pix2pix_folder), steps=1, size=64, device="cpu")
    flags = [False, True, False]
    with monkeypatch.context() as patch:
        patch.setattr(editor.pipeline, "run_safety_checker", lambda image, *_: (image, flags))
        (row,) = editor.edit(photographs[:1], ["make it red"], [SEEDS])
        assert [image is None for image in row] == flags
    draw = editor.pipeline.image_processor.postprocess
    black = lambda *args, **kwargs: [Image.new("RGB", image.size) for image in draw(*args, **kwargs)]  # noqa: E731
    monkeypatch.setattr(editor.pipeline.image_processor, "postprocess", black)
    assert list(editor.edit(photographs[:1], ["make it red"], [[1, 2]])) == [[None, None]]


@pytest.mark.parametrize("folder", ["flux_folder", "pix2pix_folder"])
def test_a_batch_gives_what_single_calls_give(folder, photographs, request, monkeypatch):
    """No image of a batch is shown to another's prompt, as FLUX.2 would do, and none is brought to another's size."""
    id = str(request.getfixturevalue(folder))
    one, many = (load_editor(id, steps=2, size=64, batch_size=size, device="cpu") for size in (1, 8))
    assert (one.batch_size, many.batch_size) == (1, 8)
    wide, tall = photographs
    sources = [wide, tall, wide.transpose(Image.Transpose.FLIP_LEFT_RIGHT), wide]
    words, seeds = ["make it red", "turn it", "make it blue", "add a dog"], [[1, 2], [3, 4], [5, 6], [7]]
    calls = []
    call = type(many.pipeline).__call__
    monkeypatch.setattr(type(many.pipeline), "__call__", lambda self, **how: calls.append(how) or call(self, **how))
    together = list(many.edit(sources, words, seeds))
    assert len(calls) == 3  # two of one size and as many seeds; one of another size; one of fewer seeds
    for source, word, row, images in zip(sources, words, seeds, together, strict=True):
        ((*singles,),) = one.edit([source], [word], [row])
        assert all(near(image, single) for image, single in zip(images, singles, strict=True))
    assert len({image.tobytes() for row in together for image in row}) == 7


def test_the_id_tells_what_changes_the_images(flux_folder):
    settings = [{}, {"steps": 4}, {"size": 256}, {"dtype": "bfloat16"}, {"batch_size": 2}]
    ids = [load_editor(f"diffusers:{flux_folder}", device="cpu", **changed).id for changed in settings]
    assert len(set(ids)) == 4 and ids[0] == ids[-1] and all(id.startswith(f"{flux_folder.name}@") for id in ids)


def test_offloading_needs_an_accelerator(flux_folder):
    with pytest.raises(UserError, match="`editor_offload` \\(model\\).*runs on the CPU"):
        load_editor(str(flux_folder), offload="model", device="cpu")


@pytest.mark.parametrize("folder", ["flux_folder", "pix2pix_folder"])
def test_a_folder_edits_images_for_the_command(folder, request, encoder, clip_folder, tmp_path):
    editor = request.getfixturevalue(folder)
    keep = lambda row: row["direction"] == "t2i" and row["q"] % 10 == 0  # noqa: E731
    words = World.build(tmp_path / "world", encoder, 6, d_i2t=1, keep=keep).command(clip_folder)
    options = f"--llm world/oracle --editor {editor} --editor-size 64 --editor-steps 1 --editor-batch-size 2"
    assert main([*words, *options.split(), "--candidates", "2", "--output", str(tmp_path / "out")]) == 0
    records = load_records(tmp_path / "out")
    assert len(records) > 0 and all(row["edit_image"].size == (64, 64) for row in records)
    assert all(row["editor"].startswith(f"{editor.name}@") for row in records)


def test_a_pipeline_that_takes_no_image_is_refused():
    class TextToImage:
        def __call__(self, prompt, generator=None): ...

    with pytest.raises(UserError, match="TextToImage, whose call takes no image"):
        DiffusersEditor(TextToImage(), "my/model")


@pytest.mark.parametrize(
    ("size", "side"), [((512, 512), 512), ((640, 480), 512), ((4000, 500), 512), ((10, 10), 64), ((1, 7), 64)]
)
def test_fits_the_area_of_a_square(size, side):
    width, height = fit(size, side)
    assert width % 16 == height % 16 == 0 and min(width, height) >= 64
    if min(width, height) > 64:
        assert width * height == pytest.approx(side**2, rel=0.06)
        assert width / height == pytest.approx(size[0] / size[1], rel=0.06)
