"""Finding the answer y under the two marginal models (Lewis et al. 2020, section 2.5), greedily.

Both functions start from one ``Prefill``: no passage is read twice and nothing is retrieved twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ragray.batching import pad_rows
from ragray.formulas import marginal
from ragray.generator import Generator, Prefill


@dataclass(frozen=True, slots=True)
class Decoded:
    """The answers of a batch: token ids with the token that ends them, and what each passage makes of them."""

    tokens_B: list[list[int]]
    log_likelihood_B: Tensor
    token_logprobs_BKT: Tensor
    mask_BT: Tensor


def decode(variant: marginal.Variant, generator: Generator, prefill: Prefill, log_prior_BK: Tensor) -> Decoded:
    """The greedy answer of every question under the variant; consumes the prefill."""
    if variant == "rag_token":
        return decode_rag_token(generator, prefill, log_prior_BK)
    return decode_rag_sequence(generator, prefill, log_prior_BK)


@torch.inference_mode()
def decode_rag_token(generator: Generator, prefill: Prefill, log_prior_BK: Tensor) -> Decoded:
    """Greedy search with the transition p'(y_t|x,y_<t) = sum_K p(z|x) p(y_t|x,z,y_<t)."""
    num_questions, num_passages = log_prior_BK.shape
    finished_B = torch.zeros(num_questions, dtype=torch.bool, device=generator.device)
    chosen: list[Tensor] = []
    scores: list[Tensor] = []
    alive: list[Tensor] = []
    for position in range(generator.config.max_answer_tokens):
        if position:
            generator.step(prefill, chosen[-1].repeat_interleave(num_passages))
        logprobs_BKV = prefill.logits_RV.float().log_softmax(-1).view(num_questions, num_passages, -1)
        token_B = torch.logsumexp(log_prior_BK.unsqueeze(-1) + logprobs_BKV, dim=1).argmax(-1)
        chosen.append(token_B)
        scores.append(logprobs_BKV.gather(2, token_B.view(-1, 1, 1).expand(-1, num_passages, 1)).squeeze(-1))
        alive.append(~finished_B)
        finished_B = finished_B | generator.stops(token_B)
        if finished_B.all():
            break
    mask_BT = torch.stack(alive, dim=1)
    token_logprobs_BKT = torch.stack(scores, dim=2)
    tokens_BT = torch.stack(chosen, dim=1)
    return Decoded(
        [row[keep].tolist() for row, keep in zip(tokens_BT, mask_BT, strict=True)],
        marginal.token_log_likelihood(log_prior_BK, token_logprobs_BKT, mask_BT),
        token_logprobs_BKT,
        mask_BT,
    )


@torch.inference_mode()
def decode_rag_sequence(generator: Generator, prefill: Prefill, log_prior_BK: Tensor) -> Decoded:
    """Greedy search per passage, then Thorough Decoding: every distinct hypothesis is scored under every passage.

    The hypothesis of largest log p(y|x) wins; ties go to the passage of higher rank.
    """
    num_questions, num_passages = log_prior_BK.shape
    start = Prefill(prefill.cache, prefill.mask_RL, prefill.length_R, prefill.logits_RV)
    hypotheses_R = _greedy_per_row(generator, prefill)
    start.cache.crop(start.mask_RL.shape[1] - start.cache.get_seq_length())
    candidates_B = [
        list(dict.fromkeys(map(tuple, hypotheses_R[row * num_passages : (row + 1) * num_passages])))
        for row in range(num_questions)
    ]
    best: list[tuple[float, list[int], Tensor]] = [(-torch.inf, [], torch.empty(0))] * num_questions
    for rank in range(max(map(len, candidates_B))):
        targets_B = [list(candidates[min(rank, len(candidates) - 1)]) for candidates in candidates_B]
        scores_BKT, mask_BT = score_targets(generator, start, targets_B, num_passages)
        likelihood_B = marginal.sequence_log_likelihood(log_prior_BK, scores_BKT, mask_BT)
        for index, value in enumerate(likelihood_B.tolist()):
            if rank < len(candidates_B[index]) and value > best[index][0]:
                best[index] = (value, targets_B[index], scores_BKT[index])
    tokens_B = [tokens for _, tokens, _ in best]
    _, mask_BT = pad_rows(tokens_B, 0)
    width = mask_BT.shape[1]
    token_logprobs_BKT = torch.stack([_to_width(scores, width) for _, _, scores in best])
    likelihood_B = torch.tensor([value for value, _, _ in best], device=generator.device)
    return Decoded(tokens_B, likelihood_B, token_logprobs_BKT, mask_BT.bool().to(generator.device))


def score_targets(
    generator: Generator, prefill: Prefill, targets_B: Sequence[Sequence[int]], num_passages: int
) -> tuple[Tensor, Tensor]:
    """(token_logprobs_BKT, mask_BT) of one target a question under all its passages; the prefill is left as it was."""
    targets_R = [target for target in targets_B for _ in range(num_passages)]
    logprobs_RT = generator.score(prefill, targets_R)
    _, mask_BT = pad_rows(targets_B, 0)
    return logprobs_RT.view(len(targets_B), num_passages, -1), mask_BT.bool().to(generator.device)


def _greedy_per_row(generator: Generator, prefill: Prefill) -> list[list[int]]:
    num_rows = len(prefill.length_R)
    finished_R = torch.zeros(num_rows, dtype=torch.bool, device=generator.device)
    tokens: list[list[int]] = [[] for _ in range(num_rows)]
    for position in range(generator.config.max_answer_tokens):
        token_R = prefill.logits_RV.argmax(-1)
        for row in torch.nonzero(~finished_R).flatten().tolist():
            tokens[row].append(int(token_R[row]))
        finished_R = finished_R | generator.stops(token_R)
        if finished_R.all() or position + 1 == generator.config.max_answer_tokens:
            break
        generator.step(prefill, token_R)
    return tokens


def _to_width(scores_KT: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(scores_KT, (0, max(0, width - scores_KT.shape[1])))[:, :width]
