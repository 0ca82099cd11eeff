"""A decoder-only and a sequence-to-sequence model, and the slow way to read with them: rows alone, without a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from ragray.config import GeneratorConfig
from ragray.formulas import marginal
from ragray.generators.base import Generator, Prefill
from ragray.generators.causal import CausalGenerator
from ragray.generators.loading import load_generator
from ragray.generators.prompt import Ids, Row


@dataclass
class Plain:
    """What a generator says of single rows, read from the first token to the last every time."""

    generator: Generator
    known: dict[tuple[Row, Ids], Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def read(self, row: Row, tokens: Ids) -> Tensor:
        """log p of every token of the vocabulary after none, one, ... all of the tokens: (T + 1, V)."""
        if (row, tokens) not in self.known:
            if isinstance(self.generator, CausalGenerator):
                whole = torch.tensor([[*row.passage, *row.question, *tokens]])
                logits_LV = self.generator.model(input_ids=whole, use_cache=False).logits[0]
            else:
                given = torch.tensor([[self.generator.decoder_start, *tokens]])
                prompt = torch.tensor([row.question])
                logits_LV = self.generator.model(input_ids=prompt, decoder_input_ids=given, use_cache=False).logits[0]
            self.known[row, tokens] = logits_LV[-len(tokens) - 1 :].log_softmax(-1)
        return self.known[row, tokens]

    def score(self, row: Row, tokens: Ids) -> Tensor:
        """log p(y_t | x, z, y_<t), shape (T,)."""
        return self.read(row, tokens)[torch.arange(len(tokens)), torch.tensor(tokens, dtype=torch.long)]

    def scores(self, rows_K: Sequence[Row], tokens: Ids) -> Tensor:
        return torch.stack([self.score(row, tokens) for row in rows_K])

    def log_likelihood(
        self, variant: marginal.Variant, rows_K: Sequence[Row], log_prior_K: Tensor, tokens: Ids
    ) -> float:
        mask_1T = torch.ones(1, len(tokens), dtype=torch.bool)
        return marginal.log_likelihood(variant, log_prior_K[None], self.scores(rows_K, tokens)[None], mask_1T).item()

    def next(self, rows_K: Sequence[Row], log_weight_K: Tensor, tokens: Ids) -> Tensor:
        """log of the mixture's distribution of the token that follows, shape (V,)."""
        logprobs_KV = torch.stack([self.read(row, tokens)[-1] for row in rows_K])
        return torch.logsumexp(log_weight_K.unsqueeze(1) + logprobs_KV, dim=0)

    def greedy(self, rows_K: Sequence[Row], log_weight_K: Tensor, max_tokens: int) -> Ids:
        tokens: Ids = ()
        while len(tokens) < max_tokens and not set(tokens) & set(self.generator.stop_ids):
            tokens = (*tokens, int(self.next(rows_K, log_weight_K, tokens).argmax()))
        return tokens


@dataclass
class Case:
    """Three questions with three passages each."""

    generator: Generator
    plain: Plain
    questions: Sequence[str]
    passages_BK: Sequence[Sequence]
    log_prior_BK: Tensor
    rows_BK: Sequence[Sequence[Row]]
    prefill: Prefill

    @property
    def rows(self) -> list[Row]:
        return [row for rows_K in self.rows_BK for row in rows_K]

    def of(self, *positions: int) -> Case:
        """The same of some of the questions, in this order."""
        questions = [self.questions[b] for b in positions]
        passages_BK = [self.passages_BK[b] for b in positions]
        prefill = self.generator.prefill(questions, passages_BK)
        log_prior_BK, rows_BK = self.log_prior_BK[list(positions)], [self.rows_BK[b] for b in positions]
        return Case(self.generator, self.plain, questions, passages_BK, log_prior_BK, rows_BK, prefill)


@pytest.fixture(scope="session")
def make_case(questions, passages) -> Callable[[Generator], Case]:
    def make(generator: Generator) -> Case:
        passages_BK = [list(passages[:3]), [passages[4], passages[0], passages[2]], list(passages[3:])]
        log_prior_BK = torch.tensor([[1.0, 0.5, -1.0], [0.0, 0.0, 0.0], [2.0, 1.9, 1.8]]).log_softmax(-1)
        rows = generator.prompt.rows(questions, passages_BK)
        rows_BK = [rows[at : at + 3] for at in (0, 3, 6)]
        prefill = generator.prefill(questions, passages_BK)
        return Case(generator, Plain(generator), questions, passages_BK, log_prior_BK, rows_BK, prefill)

    return make


@pytest.fixture(scope="session")
def llama_case(generator_folder, make_case) -> Case:
    return make_case(load_generator(generator_folder, GeneratorConfig(model="tiny", max_answer_tokens=8)))


@pytest.fixture(scope="session")
def bart_case(bart_folder, make_case) -> Case:
    return make_case(load_generator(bart_folder, GeneratorConfig(model="tiny", max_answer_tokens=8)))


@pytest.fixture(params=["llama", "bart"])
def case(request) -> Case:
    return request.getfixturevalue(f"{request.param}_case")
