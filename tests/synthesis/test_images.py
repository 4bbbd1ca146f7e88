"""Image editing through `diffusers`: tiny random pipelines, loaded from a folder as a Hub id would be."""

from __future__ import annotations

import warnings

import pytest
from PIL import Image

from repair_hf.cli.main import main
from repair_hf.llm.prompts import Drawing
from repair_hf.records.dataset import load_records
from repair_hf.runtime.options import UserError
from repair_hf.synthesis.images import DiffusersEditor, check_pipeline, fit, load_editor
from repair_hf.synthesis.models import check_editor
from repair_hf.synthesis.options import EditorOptions, LLMOptions

SEEDS = [7, 8, 9]


def open_tiny(folder, **settings) -> DiffusersEditor:
    options = {"steps": 1, "size": 64} | settings
    return load_editor(EditorOptions(str(folder), **{f"editor_{k}": v for k, v in options.items()}), device="cpu")


def test_an_editor_that_is_nowhere_is_the_users_mistake():
    with pytest.raises(UserError, match="--editor no/such-editor: no diffusers pipeline could be loaded"):
        open_tiny("no/such-editor")


@pytest.fixture(scope="module")
def flux(flux_folder) -> DiffusersEditor:
    return open_tiny(flux_folder)


@pytest.fixture(scope="module")
def pix2pix(pix2pix_folder) -> DiffusersEditor:
    return open_tiny(pix2pix_folder)


@pytest.fixture(params=["flux", pytest.param("pix2pix", marks=pytest.mark.slow)])
def editor(request) -> DiffusersEditor:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def wide() -> Image.Image:
    return Image.linear_gradient("L").resize((96, 72)).convert("RGB")


def near(one: Image.Image, other: Image.Image) -> bool:
    return all(abs(a - b) <= 1 for a, b in zip(one.tobytes(), other.tobytes(), strict=True))


def count_calls(editor, monkeypatch) -> list[dict]:
    """Return a list that gets the arguments of each call of the pipeline."""
    calls, call = [], type(editor.pipeline).__call__

    def counted(self, **given):
        calls.append(given)
        return call(self, **given)

    monkeypatch.setattr(type(editor.pipeline), "__call__", counted)
    return calls


def test_all_candidates_come_from_one_call_and_each_depends_on_its_seed_alone(editor, wide, monkeypatch):
    calls = count_calls(editor, monkeypatch)
    images = editor.edit(wide, "make it red", SEEDS)
    assert len(calls) == 1 and len({image.tobytes() for image in images}) == 3
    assert all(image.width > image.height for image in images)
    assert near(editor.edit(wide, "make it red", [SEEDS[1]])[0], images[1])
    (turned,) = editor.edit(wide.rotate(180), "make it red", [SEEDS[1]])
    assert turned.tobytes() != images[1].tobytes()


def test_a_pipeline_that_makes_one_image_a_call_is_called_once_per_seed(editor, wide, monkeypatch):
    together = editor.edit(wide, "make it red", SEEDS)
    monkeypatch.setattr(
        editor,
        "parameters",
        {name: each for name, each in editor.parameters.items() if name != "num_images_per_prompt"},
    )
    calls = count_calls(editor, monkeypatch)
    alone = editor.edit(wide, "make it red", SEEDS)
    assert len(calls) == 3 and all(map(near, alone, together))


def test_draws_from_text_alone(flux, wide):
    """What is drawn depends on the caption and the source's size alone."""
    other = Image.new("RGB", wide.size, "green")
    drawn, same = (flux.edit(source, Drawing("two cats"), [1])[0] for source in (wide, other))
    assert near(drawn, same)
    edits = [flux.edit(wide, words, [1])[0] for words in (Drawing("a dog"), "two cats", str(Drawing("two cats")))]
    assert not any(near(drawn, edit) for edit in edits)


def test_an_editor_that_cannot_draw_is_named_at_once(flux_folder, pix2pix_folder):
    assert check_pipeline(EditorOptions(str(flux_folder)), from_text=True) == str(flux_folder)
    with pytest.raises(UserError, match="InstructPix2PixPipeline: it edits images but cannot draw from text alone"):
        check_editor(EditorOptions(str(pix2pix_folder)), LLMOptions("world/oracle"), from_text=True)


def test_is_quiet(editor, wide, caplog):
    from diffusers.utils import logging as diffusers_logging

    diffusers_logging.enable_propagation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        editor.edit(wide, "make it red", SEEDS)
    assert not caplog.records


def test_a_sliver_cannot_be_edited(editor):
    assert editor.edit(Image.new("RGB", (900, 100)), "make it red", SEEDS) == [None] * 3


def test_what_a_safety_checker_hides_is_none(pix2pix, wide, monkeypatch):
    flags = [False, True, False]
    with monkeypatch.context() as patch:
        patch.setattr(pix2pix.pipeline, "run_safety_checker", lambda image, *_: (image, flags))
        assert [image is None for image in pix2pix.edit(wide, "make it red", SEEDS)] == flags


def test_the_id_tells_what_changes_the_images(flux, flux_folder):
    settings = [{"steps": 4}, {"size": 256}, {"dtype": "bfloat16"}]
    ids = [flux.id, *(open_tiny(str(flux_folder), **changed).id for changed in settings)]
    assert len(set(ids)) == 4 and all(id.startswith(f"{flux_folder.name}@") for id in ids)


def test_offloading_needs_an_accelerator(flux_folder):
    with pytest.raises(UserError, match="`editor_offload` \\(model\\).*runs on the CPU"):
        open_tiny(flux_folder, offload="model")


@pytest.mark.parametrize("folder", ["flux_folder", pytest.param("pix2pix_folder", marks=pytest.mark.slow)])
def test_a_folder_edits_images_for_the_command(folder, request, world, clip_folder, tmp_path):
    editor = request.getfixturevalue(folder)
    few = world.with_failures(tmp_path / "world", lambda row: row["direction"] == "t2i" and row["q"] < 24)
    words = few.command(clip_folder)
    options = f"--llm world/oracle --editor {editor} --editor-size 64 --editor-steps 1"
    assert main([*words, *options.split(), "--candidates", "2", "--output", str(tmp_path / "out")]) == 0
    records = load_records(tmp_path / "out")
    assert len(records) > 0 and all(row["edit_image"].size == (64, 64) for row in records)
    assert all(row["editor"].startswith(f"{editor.name}@") for row in records)


def test_a_pipeline_that_takes_no_image_is_refused():
    class TextToImage:
        def __call__(self, prompt, generator=None): ...

    with pytest.raises(UserError, match="TextToImage, whose call takes no image"):
        DiffusersEditor(TextToImage(), "my/model", EditorOptions("my/model"))


@pytest.mark.parametrize(
    ("size", "side"), [((512, 512), 512), ((640, 480), 512), ((4000, 500), 512), ((10, 10), 64), ((1, 7), 64)]
)
def test_fits_the_area_of_a_square(size, side):
    width, height = fit(size, side)
    assert width % 16 == height % 16 == 0 and min(width, height) >= 64
    if min(width, height) > 64:
        assert width * height == pytest.approx(side**2, rel=0.06)
        assert width / height == pytest.approx(size[0] / size[1], rel=0.06)


def test_the_toy_worlds_editor_writes_pngs_alone():
    with pytest.raises(UserError, match="`editor_format` must be png"):
        check_editor(EditorOptions("world", editor_format="jpeg"), LLMOptions("world/oracle"))


def test_no_image_is_edited_above_a_megapixel():
    """FLUX.2 shrinks a larger source to a megapixel, and not its output: the edit would be another picture."""
    assert fit((4000, 1000), EditorOptions("a/b", editor_size=1024).editor_size) == (2048, 512)
    with pytest.raises(UserError, match="editor_size"):
        EditorOptions("a/b", editor_size=1040)
