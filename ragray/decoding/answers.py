"""The answers y of largest p(y|x) under the two marginal models (Lewis et al. 2020, section 2.5).

Everything starts from one ``Prefill``: no passage is read twice and nothing is retrieved twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ragray.config import DecodingConfig
from ragray.decoding.scoring import score_sequences
from ragray.decoding.search import Allowed, Found, Limits, beam_search, follow, likeliest, sampler
from ragray.formulas import marginal
from ragray.generators.base import Generator, Prefill
from ragray.generators.prompt import Ids
from ragray.records import InputError


@dataclass(frozen=True, slots=True)
class Decoded:
    """One answer: its tokens with the one that ended it, log p(y|x), and what each passage makes of it.

    Under Fast Decoding, passages whose search didn't find the answer have ``-inf``, and log p(y|x) is a lower bound.
    """

    tokens: Ids
    log_likelihood: float
    token_logprobs_KT: Tensor


def decode(
    variant: marginal.Variant,
    generator: Generator,
    prefill: Prefill,
    log_prior_BK: Tensor,
    config: DecodingConfig,
    allowed: Allowed | None = None,
) -> list[list[Decoded]]:
    """The answers of every question under the variant, best first: ``num_return_sequences`` of them or what is found.

    Args:
        prefill: of B * K rows, question-major.
        allowed: (position of the question, tokens so far) -> the tokens that may follow.

    Raises:
        InputError: if more answers are asked for than the search keeps, or ``allowed`` lets no answer through.
    """
    decoder = decode_rag_token if variant == "rag_token" else decode_rag_sequence
    answers_B = decoder(generator, prefill, log_prior_BK, config, allowed)
    if not all(answers_B):
        position = next(index for index, answers in enumerate(answers_B) if not answers)
        raise InputError(
            f"no answer to question {position} of {len(answers_B)} decoded together is possible: the allowed tokens "
            "end in a dead end"
        )
    return answers_B


@torch.inference_mode()
def decode_rag_token(
    generator: Generator,
    prefill: Prefill,
    log_prior_BK: Tensor,
    config: DecodingConfig,
    allowed: Allowed | None = None,
) -> list[list[Decoded]]:
    """One search with the transition p'(y_t|x,y_<t) = sum_K p(z|x) p(y_t|x,z,y_<t); sampling draws from it."""
    num_questions, wanted = len(log_prior_BK), config.num_return_sequences
    if not config.do_sample and wanted > config.num_beams:
        raise InputError(
            f"num_return_sequences={wanted} is over num_beams={config.num_beams}, which is all that a search by "
            "RAG-Token keeps: raise num_beams, or set do_sample"
        )
    limits = Limits.of(generator, config, allowed)
    if config.num_beams > 1:
        found_B = [beams[:wanted] for beams in beam_search(generator, prefill, log_prior_BK, limits, config)]
    else:
        groups_S = torch.arange(num_questions, device=generator.device).repeat_interleave(wanted)
        choose = sampler(config, _source(generator, config)) if config.do_sample else likeliest
        found_S = follow(generator, prefill, log_prior_BK, groups_S, limits, choose)
        found_B = [_not_lost(found_S[at : at + wanted]) for at in range(0, len(found_S), wanted)]
    return [
        [_decoded("rag_token", log_prior_BK[index], found.tokens, found.token_logprobs_KT) for found in beams]
        for index, beams in enumerate(found_B)
    ]


@torch.inference_mode()
def decode_rag_sequence(
    generator: Generator,
    prefill: Prefill,
    log_prior_BK: Tensor,
    config: DecodingConfig,
    allowed: Allowed | None = None,
) -> list[list[Decoded]]:
    """A search per passage, then Thorough or Fast Decoding of what the searches found; ties go to the higher passage.

    Thorough: every candidate is scored under every passage; a score that a search has computed isn't computed again.
    Fast: p(y|x,z) counts as 0 where y wasn't found from z, so log p(y|x) is never above Thorough's.

    Sampling draws a passage from the prior and then an answer from p(y|x,z): together, from p(y|x).
    """
    num_questions, num_passages = log_prior_BK.shape
    samples_B: list[list[Ids]] = []
    if config.do_sample:
        rows_S, found_S = _sample(generator, prefill, log_prior_BK, config, allowed)
        found_R: list[list[Found]] = [[] for _ in range(num_questions * num_passages)]
        for row, found in zip(rows_S.tolist(), found_S, strict=True):
            found_R[row] += _not_lost([found])
        wanted = config.num_return_sequences
        samples_B = [
            [found.tokens for found in _not_lost(found_S[at : at + wanted])] for at in range(0, len(found_S), wanted)
        ]
    else:
        found_R = _search_passages(generator, prefill, num_passages, config, allowed)
    tables_B = _tables(generator, prefill, found_R, num_passages, config.sequence_scoring == "thorough")
    answers_B = []
    for index, table in enumerate(tables_B):
        decoded = {
            tokens: _decoded("rag_sequence", log_prior_BK[index], tokens, scores) for tokens, scores in table.items()
        }
        best = sorted(decoded.values(), key=lambda answer: -answer.log_likelihood)
        chosen = [decoded[tokens] for tokens in samples_B[index]] if config.do_sample else best
        answers_B.append(chosen[: config.num_return_sequences])
    return answers_B


def score_targets(
    generator: Generator, prefill: Prefill, targets_B: Sequence[Sequence[Ids]], num_passages: int
) -> list[list[Tensor]]:
    """For each question, the token log-probabilities of each of its targets under all its passages: (K, T) each."""
    scores_R = score_sequences(generator, prefill, [target for target in targets_B for _ in range(num_passages)])
    return [
        [torch.stack(scores) for scores in zip(*scores_R[at : at + num_passages], strict=True)]
        for at in range(0, len(scores_R), num_passages)
    ]


def as_batch(token_logprobs_KT: Tensor) -> tuple[Tensor, Tensor]:
    """(token_logprobs_BKT, mask_BT) of one answer without padding, as a batch of one."""
    mask_1T = torch.ones(1, token_logprobs_KT.shape[1], dtype=torch.bool, device=token_logprobs_KT.device)
    return token_logprobs_KT.unsqueeze(0), mask_1T


def _search_passages(
    generator: Generator, prefill: Prefill, num_passages: int, config: DecodingConfig, allowed: Allowed | None
) -> list[list[Found]]:
    """What is found from each (question, passage) pair alone."""
    certain_R1 = torch.zeros(len(prefill), 1, device=generator.device)
    limits = Limits.of(generator, config, _of_question(allowed, num_passages))
    if config.num_beams > 1:
        return beam_search(generator, prefill, certain_R1, limits, config)
    groups_R = torch.arange(len(prefill), device=generator.device)
    return [_not_lost([found]) for found in follow(generator, prefill, certain_R1, groups_R, limits, likeliest)]


def _sample(
    generator: Generator, prefill: Prefill, log_prior_BK: Tensor, config: DecodingConfig, allowed: Allowed | None
) -> tuple[Tensor, list[Found | None]]:
    """(the row that each sample was drawn from, the samples), question-major."""
    device, num_passages = generator.device, log_prior_BK.shape[1]
    source = _source(generator, config)  # one for passages and tokens: two of a seed would draw them alike
    prior_BK = log_prior_BK.exp().to(device)
    drawn_BS = torch.multinomial(prior_BK, config.num_return_sequences, replacement=True, generator=source)
    rows_S = (drawn_BS + torch.arange(len(prior_BK), device=device).unsqueeze(1) * num_passages).flatten()
    certain_R1 = torch.zeros(len(prefill), 1, device=device)
    limits = Limits.of(generator, config, _of_question(allowed, num_passages))
    return rows_S, follow(generator, prefill, certain_R1, rows_S, limits, sampler(config, source))


def _tables(
    generator: Generator, prefill: Prefill, found_R: Sequence[Sequence[Found]], num_passages: int, thorough: bool
) -> list[dict[Ids, Tensor]]:
    """By question, its distinct candidates in the order of the passages, with their token log-probabilities (K, T)."""
    known_R = [{found.tokens: found.token_logprobs_KT[0] for found in beams} for beams in found_R]
    candidates_B = [
        list(dict.fromkeys(tokens for known in known_R[at : at + num_passages] for tokens in known))
        for at in range(0, len(known_R), num_passages)
    ]
    if thorough:
        missing_R = [
            [tokens for tokens in candidates_B[row // num_passages] if tokens not in known]
            for row, known in enumerate(known_R)
        ]
        scored_R = score_sequences(generator, prefill, missing_R)
        for known, missing, scored in zip(known_R, missing_R, scored_R, strict=True):
            known.update(zip(missing, scored, strict=True))
    return [
        {
            tokens: torch.stack(
                [
                    known.get(tokens, torch.full((len(tokens),), -torch.inf, device=generator.device))
                    for known in known_R[index * num_passages : (index + 1) * num_passages]
                ]
            )
            for tokens in candidates
        }
        for index, candidates in enumerate(candidates_B)
    ]


def _decoded(variant: marginal.Variant, log_prior_K: Tensor, tokens: Ids, token_logprobs_KT: Tensor) -> Decoded:
    likelihood = marginal.log_likelihood(variant, log_prior_K.unsqueeze(0), *as_batch(token_logprobs_KT))
    return Decoded(tokens, float(likelihood), token_logprobs_KT)


def _source(generator: Generator, config: DecodingConfig) -> torch.Generator:
    return torch.Generator(generator.device).manual_seed(config.seed)


def _not_lost(found: Sequence[Found | None]) -> list[Found]:
    return [one for one in found if one is not None]


def _of_question(allowed: Allowed | None, num_passages: int) -> Allowed | None:
    return None if allowed is None else lambda row, tokens: allowed(row // num_passages, tokens)
