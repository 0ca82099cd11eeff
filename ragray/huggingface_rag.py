"""The checkpoints of transformers' RAG, ``facebook/rag-sequence-nq`` and its kin: how they are read and written.

Such a folder (or hub repository) has one ``config.json`` of type ``rag`` and one file of weights for question encoder
and generator together, and a folder for each one's tokenizer.  What the generator reads is built by ``RagRetriever``:

    {prefix}{title}{title_sep}{text}{doc_sep}{question}

where the title has lost its quotes, double spaces have become single, and the question is what the question encoder's
tokenizer makes of it, which may be lower case.  A ``GeneratorConfig`` with ``text_rules="hf_rag"`` says the same; but
an input over the limit loses the end of its passage, where ``RagRetriever`` cuts off the question.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from transformers import (
    PreTrainedConfig,
    RagConfig,
    RagModel,
    RagSequenceForGeneration,
    RagTokenForGeneration,
    RagTokenizer,
)

from ragray.config import GeneratorConfig
from ragray.records import InputError

_MAX_QUESTION_TOKENS = 128


def is_rag_folder(folder: str | Path) -> bool:
    """Whether a folder or hub name is a RAG of transformers, by its ``config.json``; no where there is none."""
    try:
        settings, _ = PreTrainedConfig.get_config_dict(folder)
    except OSError:
        return False
    return bool(settings.get("model_type") == RagConfig.model_type)


def load_question_encoder(folder: str | Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """The question encoder of a RAG folder (or hub name), and its tokenizer.

    Raises:
        InputError: if one of them isn't there, or weights are missing.
    """
    model, tokenizer = _load(folder, dtype)
    return model.question_encoder, tokenizer.question_encoder


def load_generator(
    folder: str | Path, config: GeneratorConfig, dtype: torch.dtype = torch.float32, attention: str | None = None
) -> tuple[Any, Any, Any, GeneratorConfig]:
    """(the generator of a RAG folder or hub name, its tokenizer, the question encoder's tokenizer, its settings).

    The settings are ``config`` with the folder's templates and limits; how answers are written stays as it is.

    Args:
        attention: an attention implementation of transformers.

    Raises:
        InputError: if a part isn't there, weights are missing, or the attention is unknown.
    """
    model, tokenizer = _load(folder, dtype)
    if attention is not None:
        try:
            model.generator.set_attn_implementation(attention)
        except (ValueError, ImportError) as error:
            raise InputError(f"the generator of {folder} can't use attention {attention!r}: {error}") from error
    return model.generator, tokenizer.generator, tokenizer.question_encoder, _settings(config, model.config)


def export(
    folder: str | Path,
    question_encoder: Any,
    question_tokenizer: Any,
    generator: Any,
    generator_tokenizer: Any,
    config: GeneratorConfig,
    variant: str,
    n_docs: int,
    temperature: float,
) -> None:
    """Write models as a folder that ``RagSequenceForGeneration`` or ``RagTokenForGeneration`` loads.

    The format has no place for a question template of the encoder or ``text_rules``: transformers asks the question as
    it is and always applies the rules of ``hf_rag``.

    Args:
        config: of the generator; its templates must have the form that the format knows.
        variant: ``rag_sequence`` or ``rag_token``.
        n_docs: passages a question.
        temperature: of the prior; the format knows only 1, the softmax of q·d as it is.

    Raises:
        InputError: for another temperature, an encoder whose vectors transformers' RAG can't take, a generator that
            isn't sequence-to-sequence, or templates that the format can't express.
    """
    if temperature != 1:
        raise InputError(
            f"the prior's temperature is {temperature}, but transformers' RAG has none (that is, 1): save question "
            "encoder and generator as folders of their own"
        )
    if question_encoder.config.model_type != "dpr":
        raise InputError(
            f"the question encoder is a {question_encoder.config.model_type} model, but transformers' RAG takes a "
            "question's vector from DPR models alone: save question encoder and generator as folders of their own"
        )
    if not generator.config.is_encoder_decoder:
        raise InputError(
            f"the generator is a {generator.config.model_type} model, but transformers' RAG needs a "
            "sequence-to-sequence one (BART, T5): save question encoder and generator as folders of their own"
        )
    prefix, title_sep, doc_sep = _separators(config)
    start = config.decoder_start if config.decoder_start is not None else generator.config.decoder_start_token_id
    begin, end = getattr(generator.config, "bos_token_id", None), generator.config.eos_token_id
    special = generator_tokenizer.num_special_tokens_to_add()
    settings = RagConfig(
        question_encoder=question_encoder.config.to_dict(),
        generator={**generator.config.to_dict(), "prefix": prefix, "decoder_start_token_id": start},
        # RagSequenceForGeneration fails without one, and T5 has none; no answer but the empty one begins with the end.
        bos_token_id=end if begin is None else begin,
        eos_token_id=end,
        pad_token_id=generator.config.pad_token_id,
        decoder_start_token_id=start,
        title_sep=title_sep,
        doc_sep=doc_sep,
        n_docs=n_docs,
        max_combined_length=config.max_prompt_tokens
        or config.max_passage_tokens + config.max_question_tokens + special,
        retrieval_vector_size=question_encoder.config.projection_dim or question_encoder.config.hidden_size,
    )
    model_class = RagSequenceForGeneration if variant == "rag_sequence" else RagTokenForGeneration
    model_class(settings, question_encoder=question_encoder, generator=generator).save_pretrained(folder)
    RagTokenizer(question_tokenizer, generator_tokenizer).save_pretrained(folder)


def _load(folder: str | Path, dtype: torch.dtype) -> tuple[Any, Any]:
    try:
        loaded: Any = RagModel.from_pretrained(folder, dtype=dtype, output_loading_info=True)
        model, report = loaded
        tokenizer = RagTokenizer.from_pretrained(folder, config=model.config)
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"no RAG model of transformers at {folder}: {error}") from error
    for name, part in (("question_encoder", tokenizer.question_encoder), ("generator", tokenizer.generator)):
        if len(part) <= len(part.all_special_tokens) + 1:  # without files, transformers makes one without words
            raise InputError(f"no tokenizer at {folder}/{name}_tokenizer: a RAG folder of transformers has both")
    missing = sorted(name for name in report["missing_keys"] if "pooler" not in name)
    if missing:  # transformers would go on with random ones
        raise InputError(f"{folder} lacks {len(missing)} weights of a RAG model, such as {missing[0]}: fetch it again")
    return model.eval(), tokenizer


def _settings(config: GeneratorConfig, rag: RagConfig) -> GeneratorConfig:
    """``config``, with the text preparation of ``RagRetriever``."""
    prefix = getattr(rag.generator, "prefix", None) or ""
    texts = {
        "passage_template": f"{_literal(prefix)}{{title}}{_literal(rag.title_sep)}{{text}}",
        "question_template": f"{_literal(rag.doc_sep)}{{question}}",
        "answer_template": "{answer}",
        "max_prompt_tokens": rag.max_combined_length,
        "max_passage_tokens": rag.max_combined_length,
        "max_question_tokens": min(_MAX_QUESTION_TOKENS, rag.max_combined_length // 2),
        "stop": (),
        "text_rules": "hf_rag",
    }
    return GeneratorConfig(**{**config.model_dump(), **texts})


def _separators(config: GeneratorConfig) -> tuple[str, str, str]:
    """(prefix, title_sep, doc_sep) that the templates amount to."""
    template = config.passage_template + config.question_template
    text = template.format(title="\0", text="\1", question="\2")
    match = re.fullmatch("([^\0-\2]*)\0([^\0-\2]*)\1([^\0-\2]*)\2", text)
    if match is None:
        raise InputError(
            f"transformers' RAG reads title, text and question in this order, once each, with nothing after the "
            f"question, but the generator's templates are {template!r}: train with templates such as "
            "'{title} / {text}' and ' // {question}' to export"
        )
    return match[1], match[2], match[3]


def _literal(text: str) -> str:
    """As a part of a template."""
    return text.replace("{", "{{").replace("}", "}}")
