"""A model folder or hub name -> the generator that fits its architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from ragray import huggingface_rag
from ragray.config import GeneratorConfig
from ragray.generators.base import Generator
from ragray.generators.causal import CausalGenerator
from ragray.generators.prompt import PromptTokenizer
from ragray.generators.seq2seq import Seq2SeqGenerator
from ragray.records import InputError
from ragray.storage import local_copy


def load_generator(
    folder: str | Path, config: GeneratorConfig, dtype: torch.dtype = torch.float32, attention: str | None = None
) -> Generator:
    """Load a Hugging Face folder (or hub name); a prompt saved there by ragray takes precedence over ``config``'s.

    Of a RAG folder of transformers it is the generator, with the prompt that it was trained with.

    Args:
        attention: an attention implementation of transformers (``sdpa``, ``eager``, ``flash_attention_2``, …) for
            reading prompts and for training.

    Raises:
        InputError: if there is no language model at ``folder``, or none that can generate an answer from a prompt.
    """
    folder = local_copy(folder)
    if huggingface_rag.is_rag_folder(folder):
        model, tokenizer, questions, config = huggingface_rag.load_generator(folder, config, dtype, attention)
        prompt = PromptTokenizer(tokenizer, config, joint=True, question_tokenizer=questions)
        return Seq2SeqGenerator(model, prompt).eval()
    try:
        seq2seq = bool(AutoConfig.from_pretrained(folder).is_encoder_decoder)
        loader: Any = AutoModelForSeq2SeqLM if seq2seq else AutoModelForCausalLM
        options = {} if attention is None else {"attn_implementation": attention}
        model, report = loader.from_pretrained(folder, dtype=dtype, output_loading_info=True, **options)
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"no generator at {folder}: {error}") from error
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would go on with random ones
        raise InputError(f"no generator at {folder}: it lacks {len(missing)} weights of one, such as {missing[0]}")
    prompt = PromptTokenizer.load(folder, config, joint=seq2seq)
    return (Seq2SeqGenerator if seq2seq else CausalGenerator)(model.eval(), prompt).eval()
