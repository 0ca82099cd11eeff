"""The bi-encoder: text -> vectors whose inner product scores a passage for a question.

Text preparation (templates, limits, pooling, normalisation, temperature) belongs to the encoder and is saved in its
folder as ``ragray_encoder.json``, so that embedding, training and serving can't differ in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from ragray.batching import pad_rows, token_budget_batches
from ragray.config import EncoderConfig
from ragray.records import FloatArray, InputError, Passage

PREPARATION_FILE = "ragray_encoder.json"


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


class Encoder(nn.Module):
    """One tower of the bi-encoder: q(x) or d(z), by the texts it is given."""

    def __init__(self, model: nn.Module, tokenizer: Any, preparation: TextPreparation) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.preparation = preparation

    @classmethod
    def load(cls, folder: str | Path, config: EncoderConfig, dtype: torch.dtype = torch.float32) -> Encoder:
        """Load a Hugging Face or sentence-transformers folder (or hub name).

        Raises:
            InputError: if there is no model at ``folder``.
        """
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            model = AutoModel.from_pretrained(folder, dtype=dtype)
        except (OSError, ValueError) as error:
            raise InputError(f"no encoder at {folder}: {error}") from error
        return cls(model, tokenizer, text_preparation(Path(folder), config)).eval()

    @property
    def dimension(self) -> int:
        return int(cast(Any, self.model).config.hidden_size)

    def embed_questions(self, questions: Sequence[str]) -> Tensor:
        """q(x), float32 of shape (B, D), in one batch and with gradient."""
        return self._embed(self.tokenize_questions(questions))

    @torch.inference_mode()
    def embed_passages(self, passages: Sequence[Passage], tokens_per_batch: int = 4096) -> FloatArray:
        """d(z), float32 of shape (N, D): batches of similar length under a budget of padded tokens."""
        rows = self.tokenize_passages(passages)
        vectors_ND = torch.empty(len(rows), self.dimension)
        for positions in token_budget_batches([len(row) for row in rows], tokens_per_batch):
            vectors_ND[positions] = self._embed([rows[position] for position in positions])
        return cast(FloatArray, vectors_ND.numpy())

    def trainable(self, rate: float) -> list[nn.Parameter]:
        """Choose what is trained: everything that the vectors depend on, or nothing (rate 0).  Returns the weights."""
        self.model.requires_grad_(rate > 0)
        if pooler := getattr(self.model, "pooler", None):
            pooler.requires_grad_(False)  # BERT's classification head; not part of the vectors
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def tokenize_questions(self, questions: Sequence[str]) -> list[list[int]]:
        texts = [self.preparation.question_template.format(question=question) for question in questions]
        return self._tokenize(texts, self.preparation.max_question_tokens)

    def tokenize_passages(self, passages: Sequence[Passage]) -> list[list[int]]:
        template = self.preparation.passage_template
        texts = [template.format(title=passage.title, text=passage.text) for passage in passages]
        return self._tokenize(texts, self.preparation.max_passage_tokens)

    def save(self, folder: Path) -> None:
        """Write a plain Hugging Face folder plus the text preparation."""
        cast(Any, self.model).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        (folder / PREPARATION_FILE).write_text(json.dumps(asdict(self.preparation), indent=1), encoding="utf-8")

    def _tokenize(self, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
        if not texts:
            return []  # tokenizers refuse an empty batch
        return cast(list[list[int]], self.tokenizer(list(texts), truncation=True, max_length=max_tokens).input_ids)

    def _embed(self, rows: Sequence[Sequence[int]]) -> Tensor:
        ids_BL, mask_BL = pad_rows(rows, self.tokenizer.pad_token_id or 0)
        device = next(self.model.parameters()).device
        mask_BL = mask_BL.to(device)
        hidden_BLD = self.model(input_ids=ids_BL.to(device), attention_mask=mask_BL).last_hidden_state.float()
        if self.preparation.pooling == "cls":
            vectors_BD = hidden_BLD[:, 0]
        else:
            weight_BL1 = mask_BL.unsqueeze(-1).float()
            vectors_BD = (hidden_BLD * weight_BL1).sum(1) / weight_BL1.sum(1)
        return nn.functional.normalize(vectors_BD, dim=-1) if self.preparation.normalize else vectors_BD


def text_preparation(folder: Path, config: EncoderConfig) -> TextPreparation:
    """The preparation saved with the model by ragray; else the settings, filled from sentence-transformers files."""
    saved = folder / PREPARATION_FILE
    if saved.exists():
        return TextPreparation(**json.loads(saved.read_text(encoding="utf-8")))
    pooling, normalize = _sentence_transformers_modules(folder)
    return TextPreparation(
        passage_template=config.passage_template,
        question_template=config.question_template,
        max_passage_tokens=config.max_passage_tokens,
        max_question_tokens=config.max_question_tokens,
        pooling=config.pooling or pooling,
        normalize=normalize if config.normalize is None else config.normalize,
        temperature=config.temperature,
    )


def _sentence_transformers_modules(folder: Path) -> tuple[str, bool]:
    """(pooling, normalize) as ``modules.json`` lists them; mean pooling without normalisation if there is none."""
    listing = folder / "modules.json"
    if not listing.exists():
        return "mean", False
    modules = json.loads(listing.read_text(encoding="utf-8"))
    known = ("Transformer", "Pooling", "Normalize")
    strange = [module["type"] for module in modules if not module["type"].endswith(known)]
    if strange:
        raise InputError(f"{listing} names {strange[0]}, which ragray doesn't run; it runs {', '.join(known)}")
    pooling = "mean"
    for module in modules:
        if module["type"].endswith("Pooling"):
            pooling = _pooling_mode(folder / module["path"] / "config.json")
    return pooling, any(module["type"].endswith("Normalize") for module in modules)


def _pooling_mode(file: Path) -> str:
    settings = json.loads(file.read_text(encoding="utf-8"))
    if settings.get("pooling_mode_cls_token"):
        return "cls"
    if settings.get("pooling_mode_mean_tokens"):
        return "mean"
    raise InputError(f"{file}: only mean and cls pooling are supported, set encoder.pooling to one of them")
