"""Models of sentence-transformers as retrievers: the library's vectors, and the same failures."""

from __future__ import annotations

import importlib.util
import json
import shutil

import numpy as np
import pytest
from sentence_models import KINDS, PROMPTS
from transformers import AutoModel

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.opening import open_retriever
from repair_hf.mining.mine import mine
from repair_hf.pairs.dataset import Pairs, load_pairs
from repair_hf.runtime.options import UserError
from repair_hf.toyworld.corpus import build_world

HAS_TORCHVISION = importlib.util.find_spec("torchvision") is not None
needs_torchvision = pytest.mark.skipif(not HAS_TORCHVISION, reason="Qwen2-VL's processor needs torchvision")


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    pytest.importorskip("sentence_transformers")


def model_of(folder, **options):
    """Open a folder with the library itself, which is imported late: only these tests need it."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", **options)


@pytest.fixture(scope="module")
def pairs(pairs_folder):
    return load_pairs(pairs_folder, split="all")


@pytest.fixture(scope="module")
def few(pairs):
    """The first three images and their captions."""
    return Pairs(pairs.images.select(range(3)), pairs.captions.filter(lambda row: row["image_index"] < 3))


@pytest.fixture(params=[*KINDS, pytest.param("qwen2_vl", marks=needs_torchvision)])
def folder(request, sentence_folders):
    return sentence_folders(request.param)


def plain(folder, pairs, **prompts) -> tuple[np.ndarray, np.ndarray]:
    """Each image and caption alone, as the library's own documentation embeds them."""
    model = model_of(folder)
    how = {"processing_kwargs": {"text": {"padding": "max_length", "max_length": 12, "return_attention_mask": False}}}
    if "SiglipModel" not in repr(model):
        how = {}
    images = [model.encode_document(row["image"], prompt=prompts.get("document")) for row in pairs.images]
    texts = [model.encode_query(text, prompt=prompts.get("query"), **how) for text in pairs.captions["caption"]]
    return tuple(np.stack(some) / np.linalg.norm(some, axis=1, keepdims=True) for some in (images, texts))


def test_vectors_are_those_of_the_library(folder, few):
    expected = plain(folder, few)
    for batch_size in (256, 2):
        encoder = open_retriever(folder, device="cpu", batch_size=batch_size)
        for found, wanted in zip(encoder.embed_pairs(few), expected, strict=True):
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.parametrize(("kind", "checkpoint"), [("clip", "clip_folder"), ("siglip", "siglip_folder")])
def test_one_checkpoint_has_the_same_failures_through_both_libraries(
    kind, checkpoint, request, sentence_folders, pairs
):
    ours = mine(request.getfixturevalue(checkpoint), pairs).to_list()[:20]
    theirs = mine(sentence_folders(kind), pairs).to_list()[:20]
    names = ("direction", "q_id", "gt_id", "fp_id", "fp_rank", "gt_rank")
    assert [[row[name] for name in names] for row in theirs] == [[row[name] for name in names] for row in ours]
    atol = 1e-4 if HAS_TORCHVISION else 1e-6  # then the library resizes by torchvision, and we by Pillow
    for score in ("fp_score", "gt_score"):
        np.testing.assert_allclose([row[score] for row in theirs], [row[score] for row in ours], atol=atol)


def test_prompts_are_the_models_own_unless_given(sentence_folders, few):
    folder = sentence_folders("vision_llm")
    for given, used in (
        ({}, PROMPTS),
        ({"query_prompt": "seek "}, PROMPTS | {"query": "seek "}),
        ({"query_prompt": "", "document_prompt": ""}, {"query": "", "document": ""}),
    ):
        found = open_retriever(folder, device="cpu", **given).embed_pairs(few)
        for vectors, wanted in zip(found, plain(folder, few, **used), strict=True):
            np.testing.assert_allclose(vectors, wanted, atol=2e-5)


def test_stored_vectors_belong_to_weights_and_prompts(sentence_folders, pairs, tmp_path, monkeypatch):
    folder = sentence_folders("vision_llm")
    first = open_retriever(folder, device="cpu").embed_pairs(pairs, cache_folder=tmp_path)
    other = open_retriever(folder, device="cpu", query_prompt="seek ")
    assert len(list(tmp_path.iterdir())) == 2
    assert not np.array_equal(other.embed_pairs(pairs, cache_folder=tmp_path)[1], first[1])
    assert len(list(tmp_path.iterdir())) == 4
    again = open_retriever(shutil.copytree(folder, tmp_path / "elsewhere"), device="cpu", query_prompt="find: ")
    assert again.dim == 16
    monkeypatch.setattr(again, "_encode", None)  # stored already
    np.testing.assert_array_equal(again.embed_pairs(pairs, cache_folder=tmp_path)[1], first[1])
    changed = open_retriever(folder, device="cpu")
    next(changed.model.parameters()).data[0] += 1
    assert len({each.digest for each in (again, other, changed)}) == 3
    assert open_retriever(folder, device="cpu", precision="bf16").digest == again.digest


def test_a_caption_that_looks_like_an_image_is_a_text(sentence_folders, pairs_folder):
    encoder = open_retriever(sentence_folders("vision_llm"), device="cpu")
    path = f"{pairs_folder}/red_circle.png"
    picture = encoder.model.encode_query(path)  # the library opens it
    assert abs(float(encoder.embed_texts([path])[0] @ (picture / np.linalg.norm(picture)))) < 0.999
    for caption in ("https://example.org/a.jpg", "data:image/png;base64,AAAA"):
        assert encoder.embed_texts([caption]).shape == (1, 16)


def test_a_loaded_model_is_a_retriever(sentence_folders, pairs):
    folder = sentence_folders("two_towers")
    loaded = model_of(folder)
    assert mine(loaded, pairs).to_list() == mine(folder, pairs).to_list()


def test_a_model_that_compares_by_dot_products_is_a_warning(sentence_folders, caplog):
    loaded = model_of(sentence_folders("clip"), similarity_fn_name="dot")
    open_retriever(loaded, device="cpu")
    assert "compares by dot. Here its vectors are normalized and compared by cosine." in caplog.text


def text_only(clip_folder, folder):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    tokens = Tokenizer.from_file(str(clip_folder / "tokenizer.json"))
    SentenceTransformer(modules=[StaticEmbedding(tokens, embedding_dim=4)]).save_pretrained(str(folder))


def with_code(clip_folder, folder):
    folder.mkdir()
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "custom_st.Tower"}]))


def damaged(clip_folder, folder):
    folder.mkdir()
    (folder / "modules.json").write_text("{")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (text_only, r"reads text; give a model that reads image and text"),
        (with_code, r"holds code, which this program does not run.* `mine_false_positives`"),
        (damaged, r"cannot be loaded by sentence-transformers: Expecting property name"),
    ],
)
def test_what_cannot_be_used_is_one_line(make, said, clip_folder, tmp_path):
    make(clip_folder, tmp_path / "model")
    with pytest.raises(UserError, match=said):
        open_retriever(tmp_path / "model", device="cpu")


def test_options_of_the_other_library_are_mistakes(sentence_folders, clip_folder, pairs, monkeypatch):
    with pytest.raises(UserError, match="`query_prompt` is for models of sentence-transformers"):
        open_retriever(clip_folder, device="cpu", query_prompt="seek ")
    with pytest.raises(UserError, match="`cache_images` is for checkpoints of transformers"):
        mine(sentence_folders("clip"), pairs, cache_images=True)
    with pytest.raises(UserError, match="a sentence-transformers model.* `repair-hf export triplets`"):
        DualEncoder.from_pretrained(sentence_folders("clip"))
    monkeypatch.setitem(importlib.import_module("sys").modules, "sentence_transformers", None)
    with pytest.raises(UserError, match=r"pip install 'repair-hf\[sentence-transformers\]'"):
        open_retriever(sentence_folders("clip"))


def test_a_model_saved_at_the_top_of_its_folder_trains_unless_it_has_more_modules(sentence_folders):
    checkpoint = DualEncoder.from_pretrained(sentence_folders("siglip"), device="cpu").model
    assert type(checkpoint) is type(AutoModel.from_pretrained(sentence_folders("siglip")))
    with pytest.raises(UserError, match="`repair-hf export triplets`"):
        DualEncoder.from_pretrained(sentence_folders("vision_llm"))


@pytest.mark.slow
def test_mine_evaluate_and_synthesize_take_it(sentence_folders, tmp_path, capsys):
    world = build_world(tmp_path / "world", splits={"train": 6, "validation": 1, "test": 1})
    model, pairs = sentence_folders("vision_llm"), ["--pairs", str(world), "--split", "train"]
    mined = ["mine", *pairs, "--model", str(model), "--query-prompt", "seek ", "--max-queries", "2"]
    mined += ["--output", str(tmp_path / "failures")]
    assert main(mined) == 0
    both = ["evaluate", str(model), str(sentence_folders("two_towers")), *pairs, "--resamples", "10"]
    assert main([*both, "--output", str(tmp_path / "evaluate")]) == 0
    assert json.loads((tmp_path / "evaluate" / "differences.json").read_text())
    repair = ["synthesize", *pairs, "--failures", str(tmp_path / "failures"), "--model", str(model)]
    repair += ["--llm", "world/oracle", "--editor", "world", "--candidates", "2"]
    repair += ["--output", str(tmp_path / "records")]
    assert main(repair) == 2  # the choice needs the retriever that failed
    assert "Give the same model" in capsys.readouterr().err
    assert main([*repair, "--query-prompt", "seek "]) == 0
