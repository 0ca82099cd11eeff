"""Sequence-to-sequence models of a few thousand random weights; the caller seeds them."""

from __future__ import annotations

from typing import Any

from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration


def tiny_bart(vocabulary: int, **settings: Any) -> BartForConditionalGeneration:
    """Without ``forced_eos_token_id``, by which transformers would put an end that it doesn't count."""
    sizes = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in _OF_A_STACK.items()}
    common = {"d_model": 32, "max_position_embeddings": 512, "init_std": 0.3, "forced_eos_token_id": None}
    return BartForConditionalGeneration(BartConfig(vocab_size=vocabulary, **{**sizes, **common, **settings}))


def tiny_t5(vocabulary: int, **settings: Any) -> T5ForConditionalGeneration:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    common = {"decoder_start_token_id": 0, "initializer_factor": 3.0, "tie_word_embeddings": False}
    return T5ForConditionalGeneration(T5Config(vocab_size=vocabulary, **{**sizes, **common, **settings}))


_OF_A_STACK = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}
