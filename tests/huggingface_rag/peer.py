"""ragray against the RAG of transformers, on one folder that both load.

BartConfig's ``forced_eos_token_id`` is set to None: transformers would put the end token at the last place whatever its
probability, and count that probability as 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    DPRConfig,
    DPRQuestionEncoder,
    PreTrainedTokenizerFast,
    RagConfig,
    RagRetriever,
    RagSequenceForGeneration,
    RagTokenForGeneration,
    RagTokenizer,
)

from ragray.config import DecodingConfig, GeneratorConfig
from ragray.decoding.answers import decode
from ragray.demo import tiny
from ragray.formulas import marginal
from ragray.generators.base import Generator
from ragray.generators.loading import load_generator
from ragray.records import Passage
from tests.tiny_models import tiny_bart, tiny_t5

QUESTIONS = ("What is the capital of Peru?", "Oslo?", "Which  Mountain is the HIGHEST point of Kenya ?")
ANSWERS = ("Lima", "Norway", "Mount Kenya or so")
PASSAGES = tuple(
    Passage(f"p{number}", title, text)
    for number, (title, text) in enumerate(
        [
            ('"Norway"', "The capital is Oslo.  Bergen lies on the western coast, between mountains and the sea."),
            ('"Chad', "The capital is N'Djamena."),
            ("Peru  ", "The capital is Lima; the highest point is Huascarán, and the currency is the sol."),
            ("", "Tokyo. The emperor is  the ceremonial head of the state."),
            ("Fiji", "Suva"),
            ('""Kenya""', "The capital is Nairobi, the highest point Mount Kenya. "),
        ]
    )
)
NUM_DOCS = 3
PASSAGES_BK = (PASSAGES[:3], (PASSAGES[4], PASSAGES[0], PASSAGES[5]), (PASSAGES[5], PASSAGES[3], PASSAGES[4]))
SCORES_BK = torch.tensor([[0.4, -0.2, 0.1], [1.0, 0.0, -1.0], [-0.5, 0.7, 0.3]])
LIMIT = 160
MAX_TOKENS = 8
CLASSES = {"rag_token": RagTokenForGeneration, "rag_sequence": RagSequenceForGeneration}

both_variants = pytest.mark.parametrize("variant", ["rag_token", "rag_sequence"])
both_kinds = pytest.mark.parametrize("kind", ["bart", "t5"])
seeds = pytest.mark.parametrize("seed", range(3))


# tiny models


def question_tokenizer() -> PreTrainedTokenizerFast:
    """WordPiece in lower case, as BERT's; it writes texts back with single spaces and none before punctuation."""
    split = pre_tokenizers.BertPreTokenizer()
    words = sorted({word for text in QUESTIONS for word, _ in split.pre_tokenize_str(text.lower())})
    letters = sorted(set("".join(words)))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), *words])
    core = Tokenizer(models.WordPiece({token: at for at, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = split
    core.decoder = decoders.WordPiece()
    core.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=core, **names)


def generator_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE, framed as BART (``<s> … </s>``) or T5 (``… </s>``) frame their texts."""
    texts = [passage.text for passage in PASSAGES] + list(QUESTIONS)
    names = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    if kind == "bart":
        return tiny.byte_tokenizer(texts, ["<s>", "<pad>", "</s>", "<unk>"], "<s> $A </s>", bos_token="<s>", **names)
    return tiny.byte_tokenizer(texts, ["<pad>", "</s>", "<unk>"], "$A </s>", **names)


def generator_model(kind: str, vocabulary: int, likes_end: bool, settings: dict[str, Any]) -> Any:
    """Random weights; the end token is likely, so that answers end at different lengths, and padding is not."""
    if kind == "bart":
        model = tiny_bart(vocabulary, **{"max_position_embeddings": 256, **settings})
    else:
        model = tiny_t5(vocabulary, **settings)
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    if kind == "bart":
        model.final_logits_bias[0, pad] = -1e4
        model.final_logits_bias[0, end] = 5.0 if likes_end else -1e4
        return model
    with torch.no_grad():
        model.lm_head.weight[pad] = 0
        model.lm_head.weight[end] *= 6 if likes_end else 0
    return model


def save_rag(
    folder: Path,
    kind: str,
    variant: str,
    seed: int = 0,
    likes_end: bool = True,
    generator_settings: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """A RAG folder as transformers writes it; seed and kind alone decide the weights."""
    asked, written = question_tokenizer(), generator_tokenizer(kind)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = DPRQuestionEncoder(
            DPRConfig(
                vocab_size=len(asked),
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=64,
                initializer_range=0.3,
            )
        )
        generator = generator_model(kind, len(written), likes_end, generator_settings or {})
    special = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    top = {name: getattr(generator.config, name, None) for name in special}
    config = RagConfig.from_question_encoder_generator_configs(
        encoder.config,
        generator.config,
        **{**top, "n_docs": NUM_DOCS, "max_combined_length": LIMIT, "retrieval_vector_size": 32, **settings},
    )
    CLASSES[variant](config, question_encoder=encoder, generator=generator).save_pretrained(folder)
    RagTokenizer(asked, written).save_pretrained(folder)
    return folder


# theirs and ours


@dataclass(frozen=True)
class Theirs:
    """A model of transformers, and what its retriever would feed it, padded to the longest row."""

    model: Any
    inputs: dict[str, torch.Tensor]

    @classmethod
    def load(
        cls,
        folder: Path,
        variant: str,
        dtype: torch.dtype = torch.float32,
        passages_BK: Sequence[Sequence[Passage]] = PASSAGES_BK,
        scores_BK: torch.Tensor = SCORES_BK,
    ) -> Theirs:
        model = CLASSES[variant].from_pretrained(folder, dtype=dtype).eval()
        ids, mask = retrieved_ids(folder, QUESTIONS, passages_BK)
        longest = int(mask.sum(1).max())
        scores = scores_BK.to(dtype, copy=True)
        inputs = {"context_input_ids": ids, "context_attention_mask": mask}
        return cls(model, {**{name: x[:, :longest] for name, x in inputs.items()}, "doc_scores": scores})

    def nll(self, labels: Sequence[Sequence[int]]) -> torch.Tensor:
        pad, width = self.model.config.generator.pad_token_id, max(map(len, labels))
        padded = torch.tensor([[*row, *[pad] * (width - len(row))] for row in labels])
        return self.model(**self.inputs, labels=padded).loss

    def generate(self, **options: Any) -> list[tuple[int, ...]]:
        """The answers without the start token and what follows the end."""
        rows = self.model.generate(**self.inputs, **options)[:, 1:].tolist()
        return [up_to_end(row, self.model.config.generator.eos_token_id) for row in rows]


def up_to_end(row: list[int], end: int) -> tuple[int, ...]:
    return tuple(row[: row.index(end) + 1] if end in row else row)


def retrieved_ids(
    folder: Path, questions: Sequence[str], passages_BK: Sequence[Sequence[Passage]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The generator's input as ``RagRetriever`` makes it (whose constructor needs the datasets package)."""
    config, tokenizer = RagConfig.from_pretrained(folder), RagTokenizer.from_pretrained(folder)
    strings = tokenizer.question_encoder.decode(
        tokenizer.question_encoder(list(questions), padding=True).input_ids, skip_special_tokens=True
    )
    docs = [{"title": [p.title for p in row], "text": [p.text for p in row]} for row in passages_BK]
    retriever = SimpleNamespace(config=config, generator_tokenizer=tokenizer.generator)
    prefix = getattr(config.generator, "prefix", None)
    return RagRetriever.postprocess_docs(retriever, docs, strings, prefix, len(passages_BK[0]), return_tensors="pt")


def ours(folder: Path, dtype: torch.dtype = torch.float32, **settings: Any) -> Generator:
    settings = {"model": "rag", "max_answer_tokens": 20, **settings}
    return load_generator(folder, GeneratorConfig(**settings), dtype)


def our_nll(
    generator: Generator,
    variant: marginal.Variant,
    answers: Sequence[str] = ANSWERS,
    scores_BK: torch.Tensor = SCORES_BK,
    passages_BK: Sequence[Sequence[Passage]] = PASSAGES_BK,
) -> torch.Tensor:
    scores = generator.target_logprobs(QUESTIONS, passages_BK, answers)
    return -marginal.log_likelihood(variant, marginal.log_prior(scores_BK), *scores)


def our_answers(
    generator: Generator,
    variant: marginal.Variant,
    passages_BK: Sequence[Sequence[Passage]] = PASSAGES_BK,
    scores_BK: torch.Tensor = SCORES_BK,
    **decoding: Any,
) -> list[list[tuple[int, ...]]]:
    prefill = generator.prefill(QUESTIONS, passages_BK)
    decoded_B = decode(variant, generator, prefill, marginal.log_prior(scores_BK), DecodingConfig(**decoding))
    return [[answer.tokens for answer in answers] for answers in decoded_B]


def of_equal_length(generator: Generator) -> list[list[Passage]]:
    """The passages, with texts filled up so that no input of the generator needs padding."""
    lengths = [len(row.question) for row in generator.prompt.rows(QUESTIONS, PASSAGES_BK)]
    fill = iter("~" * (max(lengths) - length) for length in lengths)  # a token each
    return [[replace(passage, text=passage.text.rstrip() + next(fill)) for passage in row] for row in PASSAGES_BK]


@torch.no_grad()
def exact_log_likelihood(
    theirs: Theirs, index: int, target: Sequence[int], start: int, scores_K: torch.Tensor
) -> torch.Tensor:
    """log p(y|x) of a question under RAG-Sequence, by the definition: a pass a passage, without cache and padding."""
    joint = []
    for row, log_prior in enumerate(scores_K.log_softmax(-1), start=index * len(scores_K)):
        real = theirs.inputs["context_attention_mask"][row].bool()
        ids, given = theirs.inputs["context_input_ids"][row, real], torch.tensor([start, *target[:-1]])
        logits_TV = theirs.model.generator(input_ids=ids[None], decoder_input_ids=given[None]).logits[0]
        logprobs_T = logits_TV.log_softmax(-1)[torch.arange(len(target)), torch.tensor(target)]
        joint.append(log_prior + logprobs_T.sum())
    return torch.stack(joint).logsumexp(0)


def exact_nll(
    theirs: Theirs, targets: Sequence[Sequence[int]], start: int, scores_BK: torch.Tensor = SCORES_BK
) -> torch.Tensor:
    """-log p(y|x) under RAG-Sequence, of one target a question."""
    pairs = enumerate(zip(targets, scores_BK, strict=True))
    return -torch.stack(
        [exact_log_likelihood(theirs, index, target, start, scores) for index, (target, scores) in pairs]
    )
