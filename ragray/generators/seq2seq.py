"""Sequence-to-sequence generators (BART, T5 and their kin): an encoder reads passage and question, a decoder writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from ragray.batching import distinct_batches, pad_rows
from ragray.generators.base import Generator, Prefill, only_module_list
from ragray.generators.branches import Branches, Folding, Prompts, branch_attention, held_by, own_cache, prompt_cache
from ragray.generators.prompt import Ids, Row
from ragray.records import InputError


class Seq2SeqGenerator(Generator):
    """p(y|x,z) by an encoder-decoder model."""

    @property
    def decoder_start(self) -> int:
        """The token from which decoding starts; not part of an answer."""
        for value in (self.config.decoder_start, self.model.config.decoder_start_token_id):
            if value is not None:
                return int(value)
        raise InputError(f"{self.config.model} names no decoder_start_token_id: set generator.decoder_start")

    def _answer_logits(self, rows: Sequence[Row], given_R: Sequence[Ids], tokens_per_batch: int) -> Tensor:
        hidden_RLD, mask_RL = self._encode(rows, tokens_per_batch)
        read, _ = pad_rows([(self.decoder_start, *given) for given in given_R], self.prompt.pad_id)
        output = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=hidden_RLD),
            attention_mask=mask_RL,
            decoder_input_ids=read.to(self.device),
            use_cache=False,
        )
        return cast(Tensor, output.logits)

    def _read(self, rows: Sequence[Row], tokens_per_batch: int) -> Prefill:
        hidden_RLD, mask_RL = self._encode(rows, tokens_per_batch)
        output = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=hidden_RLD),
            attention_mask=mask_RL,
            decoder_input_ids=torch.full((len(rows), 1), self.decoder_start, device=self.device),
            cache=EncoderDecoderCache(DynamicCache(), DynamicCache()),
            use_cache=True,
        )
        prompts = Prompts(held_by(output.cache.cross_attention_cache), mask_RL, mask_RL.sum(1))
        row_R = torch.arange(len(rows), device=self.device)
        root = Branches(prompts, row_R, held_by(output.cache.self_attention_cache), num_tokens=1)
        return Prefill(root, cast(Tensor, output.logits)[:, -1])

    def _extend(self, branches: Branches, tokens_NT: Tensor) -> tuple[Branches, Tensor]:
        prompts, row_N = branches.prompts, branches.row_N
        own = own_cache(branches, folding=None)
        cross = prompt_cache(prompts, Folding.of(row_N, len(prompts.length_R)))
        unread = torch.empty(len(row_N), 1, self.model.config.hidden_size, dtype=self.dtype, device=self.device)
        with branch_attention(self.model):
            logits_NTV = self.model(
                encoder_outputs=BaseModelOutput(last_hidden_state=unread),
                decoder_input_ids=tokens_NT,
                cache=EncoderDecoderCache(own, cross),
                use_cache=True,
            ).logits
        return Branches(prompts, row_N, held_by(own), branches.num_tokens + tokens_NT.shape[1]), logits_NTV

    def _encode(self, rows: Sequence[Row], tokens_per_batch: int) -> tuple[Tensor, Tensor]:
        """(hidden states of every row's prompt, their mask); each distinct prompt is read once, with gradient."""
        prompts_R = [row.question for row in rows]  # with the passage in it
        batches, places_R = distinct_batches(prompts_R, tokens_per_batch)
        mask_RL = pad_rows(prompts_R, self.prompt.pad_id)[1].to(self.device)
        read: list[Tensor] = []
        for batch in batches:
            ids, mask = (x.to(self.device) for x in pad_rows(batch, self.prompt.pad_id))
            hidden = self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
            read.append(nn.functional.pad(hidden, (0, 0, 0, mask_RL.shape[1] - hidden.shape[1])))
        return torch.cat(read)[torch.tensor(places_R, device=self.device)], mask_RL

    def _layer_stack(self) -> nn.ModuleList:
        return only_module_list(self.model.get_decoder())
