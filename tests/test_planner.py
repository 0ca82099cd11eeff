"""The plan's formulas against hand-computed numbers, torch's FLOP counter, FAISS' own files and Parquet's."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import faiss
import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModel

from pipelines.plan_run import main, plan_run, plan_warnings
from ragray import parquet_files, planner
from ragray.planner import GIB, Corpus, EncoderCost, Machine
from ragray.records import PASSAGE_SCHEMA, InputError, embedding_schema

BERT_BASE = EncoderCost.from_config(
    {
        "model_type": "bert",
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
    }
)
WIKIPEDIA = Corpus(21_000_000)
MACHINES = Machine(8, 16, 64 * GIB)
FAMILIES = {
    "bert": {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96},
    "roberta": {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64},
    "distilbert": {"dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 96},
    "dpr": {
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "projection_dim": 24,
    },
    "qwen2": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
    },
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tokens", [7, 40])
def test_flops_are_those_that_torch_counts(family, tokens):
    config = AutoConfig.for_model(family, vocab_size=90, max_position_embeddings=64, **FAMILIES[family])
    model = AutoModel.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.ones(1, tokens, dtype=torch.long), attention_mask=torch.ones(1, tokens, dtype=torch.long))
    cost = EncoderCost.from_config(json.loads(config.to_json_string(use_diff=False)))
    assert cost.flops(tokens) == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_flops_and_weights_of_bert_base_by_hand():
    matrices = 2 * 100 * (4 * 768 * 768 + 2 * 768 * 3072)
    assert BERT_BASE.flops(100) == 12 * (matrices + 4 * 100 * 100 * 768) + 2 * 768 * 768
    assert BERT_BASE.parameters == pytest.approx(109.5e6, rel=0.01)
    assert BERT_BASE.dimension == 768


@pytest.mark.parametrize("kind", planner.INDEX_KINDS)
@pytest.mark.parametrize("passages", [2_000, 6_000])
def test_index_bytes_are_those_of_faiss(kind, passages):
    vectors_ND = np.random.default_rng(0).standard_normal((passages, 32), dtype=np.float32)
    index = faiss.index_factory(32, planner.faiss_factory(kind, passages, 32), faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        index.train(vectors_ND)
    index.add(vectors_ND)
    assert planner.faiss_bytes(kind, passages, 32) == pytest.approx(faiss.serialize_index(index).nbytes, rel=0.02)


def test_index_bytes_of_wikipedia_by_hand():
    size = {kind: planner.faiss_bytes(kind, 21_000_000, 768) / 1e9 for kind in planner.INDEX_KINDS}
    assert size["flat"] == pytest.approx(64.5, abs=0.05)
    assert size["flat float16"] == pytest.approx(32.3, abs=0.05)
    assert size["SQ8"] == pytest.approx(16.1, abs=0.05)
    assert size["HNSW32"] == pytest.approx(64.5 + 21e-3 * (4 * 65.03 + 12), abs=0.1)
    assert size["IVF-PQ"] == pytest.approx(4.2 + 16384 * 4 * 768 / 1e9, abs=0.05)
    assert planner.faiss_factory("IVF-PQ", 21_000_000, 768) == "IVF16384,PQ192"


@pytest.mark.parametrize(("passages", "dimension"), [(400, 64), (900, 384)])
@pytest.mark.parametrize("vectors", ["float32", "float16"])
def test_vectors_take_the_bytes_that_a_file_of_them_takes(tmp_path, passages, dimension, vectors):
    numbers = np.random.default_rng(1).standard_normal(passages * dimension).astype(vectors)
    column = pa.FixedSizeListArray.from_arrays(pa.array(numbers), dimension)
    ids = [str(number) for number in range(passages)]
    hashes = pa.array([number.to_bytes(16, "big") for number in range(passages)], pa.binary(16))
    table = pa.table([ids, ids, ids, hashes, column], schema=embedding_schema(dimension, vectors))
    parquet_files.write(tmp_path / "with", [table], table.schema, {})
    parquet_files.write(tmp_path / "without", [table.drop_columns("vector")], PASSAGE_SCHEMA, {})
    corpus = Corpus(passages, vectors=vectors)
    written = (tmp_path / "with").stat().st_size - (tmp_path / "without").stat().st_size
    assert planner.embeddings_bytes(corpus, dimension) - planner.passages_bytes(corpus) == pytest.approx(
        written, rel=0.03
    )


def test_encoding_time_is_that_of_the_slowest_actor():
    machine = Machine(1, 2, 8 * GIB, flops_per_cpu=1e11)
    three_files = planner.plan_encoding(BERT_BASE, Corpus(3 * 1024), machine)
    four_files = planner.plan_encoding(BERT_BASE, Corpus(4 * 1024), machine)
    passage_s = BERT_BASE.flops(130) / 1e11 + planner.PASSAGE_OVERHEAD_S
    assert three_files.seconds == four_files.seconds == pytest.approx(planner.START_S + 2 * 1024 * passage_s)
    assert planner.plan_encoding(BERT_BASE, Corpus(10), machine).actors == 1


def test_the_smallest_number_of_shards_is_found():
    for kind in planner.INDEX_KINDS:
        for replicas in (1, 2, 3):
            shards = planner.smallest_shards(kind, 768, WIKIPEDIA, MACHINES, replicas)
            brute = next(
                count
                for count in range(1, 200)
                if planner.plan_index(kind, 768, WIKIPEDIA, MACHINES, replicas, count).fits
            )
            assert shards == brute, (kind, replicas)


def test_an_index_that_fits_nowhere_says_how_many_machines_it_takes():
    machine = Machine(2, 4, 16 * GIB)
    plan = planner.make_plan(BERT_BASE, WIKIPEDIA, machine)
    flat = plan.indexes[0]
    assert (flat.kind, flat.fits) == ("flat", False)
    assert flat.machines_needed == math.ceil(21e6 * 4 * 768 / (0.6 * 16 * GIB - planner.SHARD_PROCESS_BYTES))
    enough = replace(machine, count=flat.machines_needed)
    assert planner.plan_index("flat", 768, WIKIPEDIA, enough).fits
    assert not planner.plan_index("flat", 768, WIKIPEDIA, replace(enough, count=enough.count - 1)).fits
    (warning,) = [line for line in plan_warnings(plan) if line.startswith("flat: ")]
    assert "60.1 GiB" in warning
    assert "9.6 GiB" in warning
    assert f"use {flat.machines_needed} machines or IVF-PQ" in warning


def test_machines_that_hold_no_shard_at_all_are_not_multiplied():
    index = planner.plan_index("flat", 768, WIKIPEDIA, Machine(4, 2, 0.1 * GIB))
    assert (index.fits, index.machines_needed) == (False, None)


def test_more_shards_that_can_be_built_are_searched_too():
    plan = planner.make_plan(BERT_BASE, Corpus(1_000_000), Machine(2, 2, 16 * GIB))
    assert plan.indexes[2].build_memory_bytes > plan.machine.budget_bytes
    shards = planner.shards_to_build("SQ8", plan)
    assert shards is not None
    again = planner.plan_index("SQ8", 768, plan.corpus, plan.machine, shards=shards)
    assert again.fits
    assert again.build_memory_bytes <= plan.machine.budget_bytes * 1.001


def test_more_of_anything_costs_more():
    sizes = [1_000, 50_000, 2_000_000, 40_000_000]
    plans = [planner.make_plan(BERT_BASE, Corpus(size), MACHINES) for size in sizes]
    for smaller, larger in pairwise(plans):
        assert smaller.embeddings_bytes < larger.embeddings_bytes
        assert smaller.encoding.seconds <= larger.encoding.seconds
        for one, other in zip(smaller.indexes, larger.indexes, strict=True):
            assert one.index_bytes < other.index_bytes
            assert one.shards <= other.shards
    assert BERT_BASE.flops(64) < BERT_BASE.flops(128) / 2 < BERT_BASE.flops(256) / 4


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"passages": 0}, "passages"),
        ({"passages": -5}, "passages"),
        ({"passages": math.nan}, "passages"),
        ({"passages": 1.5}, "passages"),
        ({"tokens_per_passage": 0}, "tokens_per_passage"),
        ({"tokens_per_passage": 1000}, "tokens_per_passage"),
        ({"machines": 0}, "count"),
        ({"cpus": 0}, "cpus"),
        ({"memory_gib": -1}, "memory_bytes"),
        ({"memory_share": 1.5}, "memory_share"),
        ({"gpus": -1}, "gpus"),
        ({"gpus": 1}, "--tflops-per-gpu"),
        ({"gflops_per_cpu": -3}, "flops_per_cpu"),
        ({"gflops_per_cpu": 0}, "flops_per_cpu"),
        ({"shards": 0}, "shards"),
        ({"shards": 10_000}, "shards"),
        ({"replicas": 0}, "replicas"),
        ({"vectors": "int3"}, "vectors"),
        ({"dtype": "float8"}, "dtype"),
        ({"encoder": "no/such/encoder"}, "no/such/encoder"),
    ],
)
def test_what_cant_be_planned_is_an_input_error(arguments, named, encoder_folder):
    with pytest.raises(InputError, match=named):
        plan_run(**{"passages": 5000, "encoder": str(encoder_folder), "dtype": "float32", **arguments})


def test_an_unknown_family_of_models_is_named():
    with pytest.raises(InputError, match=r"'rwkv'.*bert"):
        EncoderCost.from_config({"model_type": "rwkv"})
    with pytest.raises(InputError, match="hidden_size"):
        EncoderCost.from_config({"model_type": "bert"})


def test_the_command_prints_the_plan_and_writes_it(encoder_folder, tmp_path, capsys):
    file = tmp_path / "plan.json"
    arguments = ["--passages", "3e5", "--encoder", str(encoder_folder), "--machines", "2", "--cpus", "4"]
    arguments += ["--memory-gib", "8", "--dtype", "float32", "--json", str(file)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "hours" in printed
    assert all(kind in printed for kind in planner.INDEX_KINDS)
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written["corpus"]["passages"] == 300_000
    assert len(written["indexes"]) == len(planner.INDEX_KINDS)
    assert main(["--passages", "0", "--encoder", str(encoder_folder)]) == 1


def test_calibration_measures_the_real_encoder(encoder_folder):
    from pipelines.plan_run import encoder_config, measure_encoder

    threads = torch.get_num_threads()
    try:
        cost = EncoderCost.from_config(encoder_config(str(encoder_folder)))
        per_second, flops, device = measure_encoder(str(encoder_folder), cost, 30, "float32", seconds=0.05)
    finally:
        torch.set_num_threads(threads)
    assert device in ("cpu", "cuda")
    assert flops / per_second == pytest.approx(cost.flops(30), rel=0.35)
