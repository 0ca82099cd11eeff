"""Decoder-only generators (Llama, GPT-2, Qwen and their kin): passage, question and answer are one text.

The passage comes first and is tokenised apart from the question, so the state after it doesn't depend on the question:
it is computed once for every distinct passage of a call and shared, with gradient.  Rows are right-padded: under causal
attention no real token sees the padding of its own row's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

from ragray.batching import distinct_batches, pad_rows
from ragray.generators.base import Generator, Prefill, only_module_list
from ragray.generators.branches import (
    Branches,
    Folding,
    Prompts,
    branch_attention,
    check_window,
    held_by,
    own_cache,
)
from ragray.generators.prompt import Ids, PromptTokenizer, Row
from ragray.records import InputError


class CausalGenerator(Generator):
    """p(y|x,z) by a causal language model."""

    def __init__(self, model: nn.Module, prompt: PromptTokenizer) -> None:
        super().__init__(model, prompt)
        self._check_head()

    def _answer_logits(self, rows: Sequence[Row], given_R: Sequence[Ids], tokens_per_batch: int) -> Tensor:
        if self.model.is_activation_checkpointing:  # which knows no cache
            first_R = [len(row.passage) + len(row.question) for row in rows]
            wholes_R = [(*row.passage, *row.question, *given) for row, given in zip(rows, given_R, strict=True)]
            ids, _ = pad_rows(wholes_R, self.prompt.pad_id)
            hidden_RL = self.model.base_model(input_ids=ids.to(self.device), use_cache=False).last_hidden_state
        else:
            first_R = [len(row.question) for row in rows]
            cache, passages_RL = self._read_passages([row.passage for row in rows], tokens_per_batch)
            suffixes_R = [(*row.question, *given) for row, given in zip(rows, given_R, strict=True)]
            hidden_RL, _ = self._read_suffixes(cache, passages_RL, suffixes_R)
        before_RT = torch.tensor(first_R, device=self.device).unsqueeze(1) - 1
        before_RT = before_RT + torch.arange(max(map(len, given_R)) + 1, device=self.device)
        before_RT = before_RT.clamp(max=hidden_RL.shape[1] - 1)  # where nothing is given, any place will do
        return self._logits(hidden_RL.gather(1, before_RT.unsqueeze(-1).expand(-1, -1, hidden_RL.shape[-1])))

    def _read(self, rows: Sequence[Row], tokens_per_batch: int) -> Prefill:
        cache, passages_RL = self._read_passages([row.passage for row in rows], tokens_per_batch)
        hidden_RL, questions_RL = self._read_suffixes(cache, passages_RL, [row.question for row in rows])
        row_R = torch.arange(len(rows), device=self.device)
        mask_RL = torch.cat([passages_RL, questions_RL], dim=1)
        prompts = Prompts(held_by(cache), mask_RL, mask_RL.sum(1))
        return Prefill(Branches(prompts, row_R, layers=None), self._logits(hidden_RL[row_R, questions_RL.sum(1) - 1]))

    def _extend(self, branches: Branches, tokens_NT: Tensor) -> tuple[Branches, Tensor]:
        prompts, row_N, length = branches.prompts, branches.row_N, tokens_NT.shape[1]
        cache = own_cache(branches, Folding.of(row_N, len(prompts.length_R)))
        start_N = prompts.length_R[row_N] + branches.num_tokens
        with branch_attention(self.model):
            hidden = self.model.base_model(
                input_ids=tokens_NT, position_ids=_positions(start_N, length), cache=cache, use_cache=True
            ).last_hidden_state
        longer = Branches(prompts, row_N, held_by(cache), branches.num_tokens + length)
        return longer, self._logits(hidden)

    def _read_passages(self, passages_R: Sequence[Ids], tokens_per_batch: int) -> tuple[Cache, Tensor]:
        """(keys and values of every row's passage part, its mask); each distinct one is read once, with gradient."""
        mask_RL = pad_rows(passages_R, self.prompt.pad_id)[1].to(self.device)
        longest = mask_RL.shape[1]
        cache = Cache(layer_class_to_replicate=DynamicLayer)
        if longest == 0:
            return cache, mask_RL
        check_window(self._window, longest)
        batches, places_R = distinct_batches(passages_R, tokens_per_batch)
        layers: list[tuple[list[Tensor], list[Tensor]]] = []
        for batch in batches:
            ids, _ = pad_rows(batch, self.prompt.pad_id)
            held = self.model.base_model(input_ids=ids.to(self.device), use_cache=True).cache
            padding = (0, 0, 0, longest - ids.shape[1])
            for number, layer in enumerate(held.layers):
                if number == len(layers):
                    layers.append(([], []))
                layers[number][0].append(nn.functional.pad(layer.keys, padding))
                layers[number][1].append(nn.functional.pad(layer.values, padding))
        rows = torch.tensor(places_R, device=self.device)
        for number, (keys, values) in enumerate(layers):
            cache.update(torch.cat(keys)[rows], torch.cat(values)[rows], number)
        return cache, mask_RL

    def _read_suffixes(self, cache: Cache, passages_RL: Tensor, suffixes_R: Sequence[Ids]) -> tuple[Tensor, Tensor]:
        """(hidden states of what follows the passages, its mask); the suffixes are added to the cache."""
        ids, mask = (x.to(self.device) for x in pad_rows(suffixes_R, self.prompt.pad_id))
        check_window(self._window, passages_RL.shape[1] + ids.shape[1])
        output = self.model.base_model(
            input_ids=ids,
            attention_mask=torch.cat([passages_RL, mask], dim=1),
            position_ids=_positions(passages_RL.sum(1), ids.shape[1]),
            cache=cache,
            use_cache=True,
        )
        return cast(Tensor, output.last_hidden_state), mask

    def _logits(self, hidden: Tensor) -> Tensor:
        """What the model's own forward makes of hidden states."""
        config = self.model.config
        logits = self.model.get_output_embeddings()(hidden)
        logits = logits / getattr(config, "logits_scaling", 1.0) * (getattr(config, "logit_scale", None) or 1.0)
        softcap = getattr(config, "final_logit_softcapping", None)
        return cast(Tensor, logits if softcap is None else torch.tanh(logits / softcap) * softcap)

    @property
    def _window(self) -> int | None:
        return getattr(self.model.config.get_text_config(decoder=True), "sliding_window", None)

    @torch.no_grad()
    def _check_head(self) -> None:
        kind, end = type(self.model).__name__, self.prompt.end_id
        ids = torch.tensor([[end, end], [end, end - 1 if end else 1]], device=self.device)
        expected = self.model(input_ids=ids, use_cache=False).logits.float()
        if not torch.allclose(expected[0, 0], expected[1, 0], rtol=1e-2, atol=1e-2):
            raise InputError(f"{self.config.model} is an encoder ({kind}), whose tokens see those after them")
        actual = self._logits(self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state).float()
        if not torch.allclose(actual, expected, rtol=1e-2, atol=1e-2):
            raise InputError(f"{kind} computes its logits in a way that ragray doesn't know: use another generator")

    def _layer_stack(self) -> nn.ModuleList:
        return only_module_list(self.model.base_model)


def _positions(start_R: Tensor, length: int) -> Tensor:
    return start_R.unsqueeze(1) + torch.arange(length, device=start_R.device)
