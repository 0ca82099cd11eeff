"""Growing answers token by token: greedy search, sampling and beam search over mixtures of prompts.

A group is what one answer is found for: K prompts and their weights.  The next token of a group's answer has the
probability sum_K weight_K p(y_t | prompt_K, y_<t).  With a question's passages as a group and the prior as its weights,
this is RAG-Token; with every (question, passage) pair as a group of one, it is the search per passage that RAG-Sequence
begins with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ragray.config import DecodingConfig
from ragray.formulas.cross_entropy import log_normalizer
from ragray.generators.base import Generator, Prefill
from ragray.generators.prompt import Ids

Allowed = Callable[[int, Ids], Sequence[int]]
"""(group, tokens so far) -> the tokens that may follow."""


@dataclass(frozen=True, slots=True)
class Found:
    """A sequence that a search ended with: its tokens with the one that ended it, and their log-probabilities under
    each of its group's K prompts."""

    tokens: Ids
    token_logprobs_KT: Tensor


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds for every search: when it ends, and which tokens it may use."""

    max_tokens: int
    min_tokens: int
    stop_ids: Ids
    allowed: Allowed | None = None

    @classmethod
    def of(cls, generator: Generator, config: DecodingConfig, allowed: Allowed | None = None) -> Limits:
        max_tokens = config.max_new_tokens or generator.config.max_answer_tokens
        return cls(max_tokens, config.min_new_tokens, generator.stop_ids, allowed)

    def apply(self, logprobs_SV: Tensor, groups: Sequence[int], so_far: Sequence[Ids]) -> Tensor:
        """-inf at the tokens that may not come next."""
        if len(so_far[0]) < self.min_tokens:
            logprobs_SV[:, list(self.stop_ids)] = -torch.inf
        if self.allowed is not None:
            barred_SV = torch.ones_like(logprobs_SV, dtype=torch.bool)
            for row, (group, tokens) in enumerate(zip(groups, so_far, strict=True)):
                barred_SV[row, list(self.allowed(group, tokens))] = False
            logprobs_SV = logprobs_SV.masked_fill(barred_SV, -torch.inf)
        return logprobs_SV


class _Mixtures:
    """S sequences in step, each over the K prompts of its group, and the distribution of their next tokens."""

    def __init__(self, generator: Generator, prefill: Prefill, log_weight_GK: Tensor, groups_S: Tensor) -> None:
        self._generator = generator
        self._log_weight_GK = log_weight_GK
        num_prompts = log_weight_GK.shape[1]
        self._within = torch.arange(num_prompts, device=log_weight_GK.device)
        start = self._prompts_of(groups_S)
        self._branches = prefill.root.choose(start)
        self.groups_S = groups_S
        self._take(prefill.logits_RV[start])

    def advance(self, parent_S: Tensor, token_S: Tensor) -> None:
        """Go on with the sequences at ``parent_S``, each with a token more."""
        self.groups_S = self.groups_S[parent_S]
        tokens = token_S.repeat_interleave(len(self._within)).unsqueeze(1)
        self._branches, logits = self._generator.extend(self._branches, self._prompts_of(parent_S), tokens)
        self._take(logits[:, -1])

    def token_logprobs(self, sequence_C: Tensor, token_C: Tensor) -> Tensor:
        """log p of tokens that could follow sequences, under each prompt: (C, K)."""
        return self._logits_SKV[sequence_C, :, token_C] - self._log_norm_SK[sequence_C]

    def logprobs(self) -> Tensor:
        """log of the mixture, (S, V)."""
        shift_SK = self._log_weight_GK[self.groups_S] - self._log_norm_SK
        joint_SKV = self._logits_SKV + shift_SK.unsqueeze(-1)
        return joint_SKV.squeeze(1) if joint_SKV.shape[1] == 1 else torch.logsumexp(joint_SKV, dim=1)

    def _take(self, logits: Tensor) -> None:
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        self._logits_SKV = precise.view(-1, len(self._within), logits.shape[-1])
        self._log_norm_SK = log_normalizer(self._logits_SKV)

    def _prompts_of(self, index: Tensor) -> Tensor:
        return (index.unsqueeze(1) * len(self._within) + self._within).flatten()


@torch.inference_mode()
def follow(
    generator: Generator,
    prefill: Prefill,
    log_weight_GK: Tensor,
    groups_S: Tensor,
    limits: Limits,
    choose: Callable[[Tensor], Tensor],
) -> list[Found | None]:
    """One sequence for each entry of ``groups_S``, token by token; ``choose`` maps logprobs (S, V) to tokens (S,).

    Greedy search if the choice is the likeliest token, sampling if it is drawn.  None where no token was allowed.
    """
    mixtures = _Mixtures(generator, prefill, log_weight_GK, groups_S)
    running = list(range(len(groups_S)))
    tokens: list[Ids] = [()] * len(running)
    scores: list[list[Tensor]] = [[] for _ in running]
    lost: set[int] = set()
    while True:
        so_far = [tokens[sequence] for sequence in running]
        logprobs_SV = limits.apply(mixtures.logprobs(), mixtures.groups_S.tolist(), so_far)
        lost_S = logprobs_SV.amax(-1).isneginf()
        logprobs_SV[lost_S] = 0.0  # any choice will do, it goes nowhere
        lost |= {running[place] for place in lost_S.nonzero().flatten().tolist()}
        chosen_S = choose(logprobs_SV)
        scores_SK = mixtures.token_logprobs(torch.arange(len(running), device=chosen_S.device), chosen_S)
        for place, (sequence, token) in enumerate(zip(running, chosen_S.tolist(), strict=True)):
            tokens[sequence] = (*tokens[sequence], token)
            scores[sequence].append(scores_SK[place])
        ended = [sequence in lost or tokens[sequence][-1] in limits.stop_ids for sequence in running]
        alive = [place for place, end in enumerate(ended) if not end]
        if not alive or len(tokens[running[0]]) >= limits.max_tokens:
            break
        running = [running[place] for place in alive]
        alive_S = torch.tensor(alive, device=chosen_S.device)
        mixtures.advance(alive_S, chosen_S[alive_S])
    found = [Found(ids, torch.stack(steps, dim=1)) for ids, steps in zip(tokens, scores, strict=True)]
    return [None if sequence in lost else one for sequence, one in enumerate(found)]


def likeliest(logprobs_SV: Tensor) -> Tensor:
    """The choice of greedy search."""
    return logprobs_SV.argmax(-1)


def sampler(config: DecodingConfig, source: torch.Generator) -> Callable[[Tensor], Tensor]:
    """The choice of sampling: temperature, then top-k, then top-p (nucleus, Holtzman et al. 2020)."""

    def draw(logprobs_SV: Tensor) -> Tensor:
        sorted_SV, order_SV = torch.sort(logprobs_SV / config.temperature, dim=-1, descending=True, stable=True)
        if config.top_k is not None:
            sorted_SV[:, config.top_k :] = -torch.inf
        probs_SV = torch.softmax(sorted_SV, dim=-1)
        before_SV = probs_SV.cumsum(-1) - probs_SV  # the likeliest token always stays
        probs_SV = probs_SV.masked_fill(before_SV >= config.top_p, 0.0)
        place_S1 = torch.multinomial(probs_SV, 1, generator=source)
        return order_SV.gather(1, place_S1).squeeze(1)

    return draw


@dataclass(slots=True)
class _Group:
    """The beams of one group: the running ones, best first, and the best that have ended."""

    number: int
    tokens: list[Ids]
    log_probs: list[float]
    steps: list[list[Tensor]]
    ended: list[tuple[float, Found]] = field(default_factory=list)


@torch.inference_mode()
def beam_search(
    generator: Generator, prefill: Prefill, log_weight_GK: Tensor, limits: Limits, config: DecodingConfig
) -> list[list[Found]]:
    """Up to ``num_beams`` sequences a group, best first by log-probability / length ** length_penalty.

    As in transformers, a sequence ends only from among the ``num_beams`` likeliest continuations, and a group is done
    once no running beam can reach the worst of its ``num_beams`` ended ones: judged at the present length by default,
    at the most favourable length with ``early_stopping="never"``; with ``early_stopping=True`` as soon as so many have
    ended.
    """
    num_groups, device = len(log_weight_GK), log_weight_GK.device
    mixtures = _Mixtures(generator, prefill, log_weight_GK, torch.arange(num_groups, device=device))
    groups = [_Group(number, [()], [0.0], [[]]) for number in range(num_groups)]
    active = groups
    for length in range(1, limits.max_tokens + 1):
        so_far = [tokens for group in active for tokens in group.tokens]
        logprobs_SV = limits.apply(mixtures.logprobs(), mixtures.groups_S.tolist(), so_far)
        parents, tokens = _continue(active, mixtures, logprobs_SV, length, limits, config)
        active = [group for group in active if group.tokens and not _is_done(group, length, limits, config)]
        if not active:
            break
        kept = [number for group in active for number in parents[group.number]]
        follow_with = [token for group in active for token in tokens[group.number]]
        mixtures.advance(torch.tensor(kept, device=device), torch.tensor(follow_with, device=device))
    return [[found for _, found in group.ended] for group in groups]


def _continue(
    active: Sequence[_Group],
    mixtures: _Mixtures,
    logprobs_SV: Tensor,
    length: int,
    limits: Limits,
    config: DecodingConfig,
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Move every group on by a token.  Returns, by group, the sequences that its beams continue, and the tokens."""
    widths = [len(group.tokens) for group in active]
    so_far_S = torch.tensor([value for group in active for value in group.log_probs], device=logprobs_SV.device)
    num_candidates = (1 + max(1, len(limits.stop_ids))) * config.num_beams
    likely = torch.topk(logprobs_SV, min(num_candidates, logprobs_SV.shape[1]))
    totals = (likely.values + so_far_S.unsqueeze(1)).split(widths)
    first = 0
    parents: dict[int, list[int]] = {}
    follow_with: dict[int, list[int]] = {}
    for group, total_WC, token_WC in zip(active, totals, likely.indices.split(widths), strict=True):
        best = torch.topk(total_WC.flatten(), min(num_candidates, total_WC.numel()))
        beam_C, token_C = best.indices // total_WC.shape[1], token_WC.flatten()[best.indices]
        scores_CK = mixtures.token_logprobs(beam_C + first, token_C)
        before, group.tokens = group.tokens, []
        log_probs: list[float] = []
        steps: list[list[Tensor]] = []
        parents[group.number], follow_with[group.number] = [], []
        candidates = zip(best.values.tolist(), beam_C.tolist(), token_C.tolist(), strict=True)
        for rank, (log_prob, beam, token) in enumerate(candidates):
            if log_prob == -torch.inf:
                break
            tokens, taken = (*before[beam], token), [*group.steps[beam], scores_CK[rank]]
            if token in limits.stop_ids or length == limits.max_tokens:
                if rank < config.num_beams:
                    found = Found(tokens, torch.stack(taken, dim=1))
                    group.ended.append((log_prob / length**config.length_penalty, found))
            elif len(log_probs) < config.num_beams:
                group.tokens.append(tokens)
                log_probs.append(log_prob)
                steps.append(taken)
                parents[group.number].append(first + beam)
                follow_with[group.number].append(token)
        first += len(before)
        group.log_probs, group.steps = log_probs, steps
        group.ended.sort(key=lambda scored: -scored[0])
        del group.ended[config.num_beams :]
    return parents, follow_with


def _is_done(group: _Group, length: int, limits: Limits, config: DecodingConfig) -> bool:
    """Whether a group's search can end: pure, of its scores alone."""
    if len(group.ended) < config.num_beams:
        return False
    if config.early_stopping is True:
        return True
    reached = limits.max_tokens if config.early_stopping == "never" and config.length_penalty > 0 else length
    return group.log_probs[0] / reached**config.length_penalty <= group.ended[-1][0]
