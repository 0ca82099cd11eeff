"""The bi-encoder: text -> vectors whose inner product scores a passage for a question.

Text preparation (templates, limits, pooling, normalisation, temperature) belongs to the encoder and is saved in its
folder as ``ragray_encoder.json``, so that embedding, training and serving can't differ in it.

What the settings leave open is as the model's author has it: see ``sentence_transformers_folder``.  A DPR model
(Karpukhin et al. 2020) is one of a pair: its vector is its pooler's output, and a passage goes into it as a pair of
title and text.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import normalizers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, DPRContextEncoder, DPRQuestionEncoder
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from ragray import huggingface_rag, sentence_transformers_folder
from ragray.batching import pad_rows, token_budget_batches
from ragray.config import EncoderConfig
from ragray.records import FloatArray, InputError, Passage
from ragray.sentence_transformers_folder import ModelCard
from ragray.storage import local_copy

PREPARATION_FILE = "ragray_encoder.json"
_DPR = "dpr"  # model_type in config.json
_DPR_TOKENS = 256  # as its authors trained it; its tokenizer says 512
_WINDOW = 1024  # passages sorted by length together


@dataclass(frozen=True, slots=True)
class TextPreparation:
    """How texts become vectors, beside the model's weights."""

    passage_template: str
    question_template: str
    max_passage_tokens: int
    max_question_tokens: int
    pooling: str
    normalize: bool
    temperature: float
    title_as_pair: bool = False


@dataclass(frozen=True, slots=True)
class Tokens:
    """One text as the model reads it; in a pair, the types tell the text (1) from the title (0)."""

    ids: list[int]
    types: list[int]

    def __len__(self) -> int:
        return len(self.ids)


class Encoder(nn.Module):
    """One tower of the bi-encoder: q(x) or d(z), by the texts it is given.

    It also holds the temperature of the prior, as ``log_temperature``: a weight that is fixed until
    ``train_temperature``.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, preparation: TextPreparation) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.preparation = preparation
        self.log_temperature = nn.Parameter(torch.tensor(math.log(preparation.temperature)), requires_grad=False)

    @classmethod
    def load(cls, folder: str | Path, config: EncoderConfig, dtype: torch.dtype = torch.float32) -> Encoder:
        """Load a Hugging Face or sentence-transformers folder (or hub name); of a RAG folder, its question encoder.

        Raises:
            InputError: if there is no model at ``folder``, weights of it are missing, or it can't be pooled as asked.
        """
        folder = local_copy(folder)
        if huggingface_rag.is_rag_folder(folder):
            rag, tokenizer = huggingface_rag.load_question_encoder(folder, dtype)
            return cls(rag, tokenizer, text_preparation(_local(folder), config, rag, tokenizer)).eval()
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            settings = AutoConfig.from_pretrained(folder)
            model, report = _model_class(settings).from_pretrained(folder, dtype=dtype, output_loading_info=True)
        except (OSError, ValueError) as error:
            raise InputError(f"no encoder at {folder}: {error}") from error
        missing = sorted(name for name in report["missing_keys"] if "pooler" not in name)
        if missing:  # transformers would go on with random ones
            raise InputError(
                f"{folder} lacks {len(missing)} weights of a {type(model).__name__}, such as {missing[0]}: its "
                f"config.json says {settings.architectures}; name the folder of an encoder"
            )
        if getattr(model.config, "use_cache", False):
            model.config.use_cache = False  # keys and values are for generating
        return cls(model, tokenizer, text_preparation(_local(folder), config, model, tokenizer)).eval()

    @property
    def dimension(self) -> int:
        return vector_dimension(cast(Any, self.model).config)

    @property
    def temperature(self) -> Tensor:
        """Of the prior p(z|x) = softmax(q·d / temperature), shape (), with gradient where it is trained."""
        return self.preparation.temperature * self._temperature_factor()

    def embed_questions(self, questions: Sequence[str]) -> Tensor:
        """q(x), float32 of shape (B, D), in one batch and with gradient.

        Raises:
            InputError: if this is a DPR encoder of passages.
        """
        if isinstance(self.model, DPRContextEncoder):
            raise InputError("a DPRContextEncoder can't embed questions: set encoder.model to a DPRQuestionEncoder")
        return self._embed(self.tokenize_questions(questions))

    def embed_passages(self, passages: Sequence[Passage], tokens_per_batch: int = 4096) -> FloatArray:
        """d(z), float32 of shape (N, D); see ``embed_counted``."""
        return self.embed_counted(passages, tokens_per_batch)[0]

    @torch.inference_mode()
    def embed_counted(self, passages: Sequence[Passage], tokens_per_batch: int) -> tuple[FloatArray, Counter[str]]:
        """d(z), float32 of shape (N, D), and what it took: ``batches``, ``tokens``, ``padded_tokens``, and
        ``squared_tokens``, the sum of the squares of the lengths.

        Window by window: a thread tokenizes the next one while the model reads this one in batches of similar length
        under a budget of padded tokens.

        Raises:
            InputError: if this is a DPR encoder of questions.
        """
        if isinstance(self.model, DPRQuestionEncoder):
            raise InputError(
                "a DPRQuestionEncoder can't embed passages: set encoder.passage_model to its DPRContextEncoder"
            )
        counts: Counter[str] = Counter()
        vectors_ND = torch.empty(len(passages), self.dimension)
        windows = [passages[start : start + _WINDOW] for start in range(0, len(passages), _WINDOW)]
        with ThreadPoolExecutor(1) as thread:
            ahead = thread.submit(self.tokenize_passages, windows[0] if windows else [])
            for number in range(len(windows)):
                rows = ahead.result()
                ahead = thread.submit(self.tokenize_passages, windows[number + 1] if number + 1 < len(windows) else [])
                lengths = [len(row) for row in rows]
                for batch in token_budget_batches(lengths, tokens_per_batch):
                    vectors_BD = self._embed([rows[place] for place in batch])
                    vectors_ND[[number * _WINDOW + place for place in batch]] = vectors_BD.cpu()
                    counts["batches"] += 1
                    counts["padded_tokens"] += lengths[batch[0]] * len(batch)
                counts["tokens"] += sum(lengths)
                counts["squared_tokens"] += sum(length * length for length in lengths)
        return cast(FloatArray, vectors_ND.numpy()), counts

    def trainable(self, rate: float) -> list[nn.Parameter]:
        """Choose what is trained: everything that the vectors depend on, or nothing (rate 0).  Returns the weights."""
        self.model.requires_grad_(rate > 0)
        if pooler := getattr(self.model, "pooler", None):
            pooler.requires_grad_(False)  # BERT's classification head; not part of the vectors
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def train_temperature(self) -> list[nn.Parameter]:
        """Let the temperature be trained, as its logarithm.  Returns that weight."""
        self.log_temperature.requires_grad_()
        return [self.log_temperature]

    def tokenize_questions(self, questions: Sequence[str]) -> list[Tokens]:
        texts = [self.preparation.question_template.format(question=question) for question in questions]
        return self._tokenize(texts, self.preparation.max_question_tokens)

    def tokenize_passages(self, passages: Sequence[Passage]) -> list[Tokens]:
        if self.preparation.title_as_pair:
            return self._tokenize_pairs(passages, self.preparation.max_passage_tokens)
        template = self.preparation.passage_template
        texts = [template.format(title=passage.title, text=passage.text) for passage in passages]
        return self._tokenize(texts, self.preparation.max_passage_tokens)

    def save(self, folder: Path) -> None:
        """Write a plain Hugging Face folder plus the text preparation, with the temperature of now."""
        temperature = self.preparation.temperature * self._temperature_factor().detach().item()
        preparation = replace(self.preparation, temperature=temperature)
        cast(Any, self.model).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        (folder / PREPARATION_FILE).write_text(json.dumps(asdict(preparation), indent=1), encoding="utf-8")

    def _temperature_factor(self) -> Tensor:
        """What training has made of the temperature, shape (); exactly 1 before, which exp(log(t)) / t isn't."""
        start = torch.full_like(self.log_temperature, math.log(self.preparation.temperature))
        return (self.log_temperature - start).float().exp()

    def _tokenize(self, texts: Sequence[str], max_tokens: int) -> list[Tokens]:
        if not texts:
            return []  # tokenizers refuse an empty batch
        encoded = self.tokenizer(list(texts), truncation=True, max_length=max_tokens)
        return [Tokens(ids, [0] * len(ids)) for ids in encoded.input_ids]

    def _tokenize_pairs(self, passages: Sequence[Passage], max_tokens: int) -> list[Tokens]:
        """Title and text of each passage as a pair, cut at the end of the text; of the title, once no text is left.

        As the tokenizer's ``truncation="only_second"``, which refuses to cut a text to nothing.
        """
        if not passages:
            return []
        titles, texts = [passage.title for passage in passages], [passage.text for passage in passages]
        encoded = self.tokenizer(titles, texts, return_token_type_ids=True, verbose=False)
        rows = []
        for number, (ids, types) in enumerate(zip(encoded.input_ids, encoded.token_type_ids, strict=True)):
            parts = [-1 if part is None else part for part in encoded.sequence_ids(number)]  # special, title, text
            kept = sorted(sorted(range(len(ids)), key=parts.__getitem__)[:max_tokens])
            rows.append(Tokens([ids[place] for place in kept], [types[place] for place in kept]))
        return rows

    def _embed(self, rows: Sequence[Tokens]) -> Tensor:
        device = next(self.model.parameters()).device
        ids_BL, mask_BL = pad_rows([row.ids for row in rows], self.tokenizer.pad_token_id or 0)
        mask_BL = mask_BL.to(device)
        inputs = {"input_ids": ids_BL.to(device), "attention_mask": mask_BL}
        if getattr(cast(Any, self.model).config, "type_vocab_size", 0) > 1:  # RoBERTa, DistilBERT and others have none
            inputs["token_type_ids"] = pad_rows([row.types for row in rows], 0)[0].to(device)
        output = self.model(**inputs)
        if self.preparation.pooling == "pooler":
            vectors_BD = output.pooler_output.float()
        elif self.preparation.pooling == "cls":
            vectors_BD = output.last_hidden_state[:, 0].float()
        elif self.preparation.pooling == "last":
            last_B = mask_BL.sum(1) - 1
            vectors_BD = output.last_hidden_state[torch.arange(len(rows), device=device), last_B].float()
        else:
            weight_BL1 = mask_BL.unsqueeze(-1).float()
            vectors_BD = (output.last_hidden_state.float() * weight_BL1).sum(1) / weight_BL1.sum(1)
        return nn.functional.normalize(vectors_BD, dim=-1) if self.preparation.normalize else vectors_BD


def vector_dimension(config: Any) -> int:
    """D, by the model's ``config.json`` as transformers reads it; of a RAG folder, its question encoder's."""
    config = getattr(config, "question_encoder", config)
    projected = config.projection_dim if config.model_type == _DPR else 0  # other models mean other things by it
    return int(projected or config.hidden_size)


def check_towers(question_folder: str, passage_folder: str) -> None:
    """Refuse two models whose vectors have no inner product; only their ``config.json`` is read.

    Raises:
        InputError: naming both models with their dimensions.
    """
    folders = {"encoder.model": question_folder, "encoder.passage_model": passage_folder}
    try:
        dimensions = {name: vector_dimension(AutoConfig.from_pretrained(folder)) for name, folder in folders.items()}
    except (OSError, ValueError) as error:
        raise InputError(f"no encoder at {question_folder} or {passage_folder}: {error}") from error
    if len(set(dimensions.values())) > 1:
        found = " and ".join(f"{name}={folders[name]} has {size}" for name, size in dimensions.items())
        raise InputError(f"both towers need vectors of one dimension, but {found}: use two models trained as a pair")


def text_preparation(folder: Path, config: EncoderConfig, model: Any, tokenizer: Any) -> TextPreparation:
    """The preparation saved with the model by ragray; else the settings, filled from what the model's folder says.

    The tokenizer is made to read lower case, if the folder says so.

    Raises:
        InputError: for ``pooler`` without a DPR model, a DPR model with anything else, limits that the model hasn't the
            positions for, and what ``sentence_transformers_folder.read`` refuses.
    """
    saved = folder / PREPARATION_FILE
    if saved.exists():
        return TextPreparation(**json.loads(saved.read_text(encoding="utf-8")))
    dpr = model.config.model_type == _DPR
    if config.pooling and dpr != (config.pooling == "pooler"):
        raise InputError(
            f"encoder.pooling={config.pooling} doesn't suit {folder}, a {model.config.model_type} model: DPR models "
            "give their pooler's output and nothing else, others give mean, cls or last; null chooses what fits"
        )
    card = (
        ModelCard("pooler", max_question_tokens=_DPR_TOKENS, max_passage_tokens=_DPR_TOKENS)
        if dpr
        else sentence_transformers_folder.read(folder, config.pooling)
    )
    if card.lower_case:
        _read_lower_case(tokenizer)
    passage_template, question_template = config.passage_template, config.question_template
    if passage_template is None:
        passage_template = _literal(card.passage_prompt) + "{title}. {text}"
    if question_template is None:
        question_template = _literal(card.question_prompt) + "{question}"
    limit = partial(_token_limit, folder, model, tokenizer)
    return TextPreparation(
        passage_template=passage_template,
        question_template=question_template,
        max_passage_tokens=limit("max_passage_tokens", config.max_passage_tokens, card.max_passage_tokens),
        max_question_tokens=limit("max_question_tokens", config.max_question_tokens, card.max_question_tokens),
        pooling=card.pooling,
        normalize=card.normalize if config.normalize is None else config.normalize,
        temperature=config.temperature,
        title_as_pair=dpr if config.title_as_pair is None else config.title_as_pair,
    )


def _local(folder: str | Path) -> Path:
    """The folder; of a hub name, one with the small files that say how the model is used."""
    if Path(folder).is_dir():
        return Path(folder)
    from huggingface_hub import snapshot_download

    patterns = [*sentence_transformers_folder.FILES, PREPARATION_FILE]
    try:
        return Path(snapshot_download(str(folder), allow_patterns=patterns))
    except (OSError, ValueError) as error:
        raise InputError(f"the files beside the model {folder} can't be had from the hub: {error}") from error


def _model_class(config: Any) -> Any:
    """``AutoModel``, but for passage encoders of DPR: it would make question encoders with random weights of them."""
    return DPRContextEncoder if "DPRContextEncoder" in (config.architectures or ()) else AutoModel


def _token_limit(folder: Path, model: Any, tokenizer: Any, name: str, setting: int | None, authors: int | None) -> int:
    """A setting holds as it is given, and an author's limit as far as there are positions.

    So nobody's number is changed silently, and a text is cut where the author cuts it.
    """
    positions = _positions(model)
    if setting is not None:
        if setting > positions:
            raise InputError(f"encoder.{name}={setting} is over the {positions} positions that {folder} has: lower it")
        return setting
    limit = min(authors or tokenizer.model_max_length, positions)
    if limit >= VERY_LARGE_INTEGER:
        raise InputError(f"{folder} doesn't say how many tokens it can read: set encoder.{name}")
    return int(limit)


def _positions(model: Any) -> int:
    """The longest text that the model has positions for; as good as infinite where its config.json names no limit."""
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is None or positions < 1:  # XLNet says -1
        return int(VERY_LARGE_INTEGER)
    for module in model.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Embedding) and table.padding_idx is not None:  # RoBERTa counts on from there
            return int(positions) - table.padding_idx - 1
    return int(positions)


def _read_lower_case(tokenizer: Any) -> None:
    core = tokenizer.backend_tokenizer
    core.normalizer = normalizers.Sequence([normalizers.Lowercase(), *([core.normalizer] if core.normalizer else [])])


def _literal(text: str) -> str:
    """As a part of a template."""
    return text.replace("{", "{{").replace("}", "}}")
