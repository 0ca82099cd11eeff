"""A passage encoder that isn't the question encoder's model: DPR, through the stages that embed and index."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from transformers import DPRConfig, DPRContextEncoder, DPRQuestionEncoder

from pipelines.embed_passages import embed_passages
from pipelines.index_embeddings import index_embeddings
from pipelines.job import check_same_encoder, encoder_ref, has_weights, open_run, question_encoder_ref
from ragray.encoders import Encoder
from ragray.records import Passage


@pytest.fixture
def towers(tmp_path):
    """Folders of a question and a passage encoder, both tiny and random."""
    folders = (tmp_path / "question", tmp_path / "passage")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", *"0123456789.,"]
    words += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    for folder, kind in zip(folders, (DPRQuestionEncoder, DPRContextEncoder), strict=True):
        kind(DPRConfig(vocab_size=len(words), projection_dim=16, **shape)).save_pretrained(folder)
        (folder / "vocab.txt").write_text("\n".join(words))
    return folders


@pytest.mark.ray
def test_the_passage_encoder_embeds_and_the_index_names_it(ray_cluster, debug_run, towers, tmp_path):
    question, passage = map(str, towers)
    settings = [f"encoder.model={question}", f"encoder.passage_model={passage}", "embed.dtype=float32"]
    run = open_run("debug", debug_run.copy(tmp_path / "run", "1-passages"), settings)
    embeddings = embed_passages(run)
    assert embeddings.manifest.config["encoder"] == passage
    rows = [row for file in sorted(embeddings.folder.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    passages = [Passage(row["id"], row["title"], row["text"]) for row in rows]
    expected_ND = Encoder.load(passage, run.config.encoder).embed_passages(passages)
    np.testing.assert_allclose([row["vector"] for row in rows], expected_ND, rtol=1e-4, atol=1e-5)
    check_same_encoder(index_embeddings(run), encoder_ref(passage, run.config.encoder), "this run")


def test_identities_of_the_towers(towers):
    question, passage = map(str, towers)

    def identity(folder, **settings):
        overrides = [f"encoder.{name}={json.dumps(value)}" for name, value in settings.items()]
        return encoder_ref(folder, open_run("debug", None, overrides).config.encoder)

    assert identity(passage, model="a", passage_model="b") == identity(passage, model="c", temperature=3.0)
    assert identity(passage, title_as_pair=False) != identity(passage)
    assert identity(passage) != identity(question)
    assert question_encoder_ref(question) != question_encoder_ref(passage)


def test_a_hub_snapshot_without_weights_is_noticed():
    assert has_weights(["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"])
    assert not has_weights(["config.json", "model.safetensors.index.json", "vocab.txt", "1_Pooling"])
