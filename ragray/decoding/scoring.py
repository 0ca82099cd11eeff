"""log p(y|x,z) of given answers from a prefill: what answers have in common is read once.

The answers of a prompt form a trie.  It is read in runs: from one depth at which some prompt's answers part to the
next, every branch takes all its tokens in one pass of the model.  Answers that share little are read in a few long
runs, the hypotheses of a beam search, which part everywhere, in short ones, and no prefix is ever read twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ragray.batching import pad_rows
from ragray.formulas.cross_entropy import log_normalizer
from ragray.generators.base import Generator, Prefill
from ragray.generators.prompt import Ids

_LOGITS_AT_ONCE = 2**26  # of one pass of the model: 256 MiB in float32
_LONGEST_RUN = 8  # tokens


@torch.inference_mode()
def score_sequences(generator: Generator, prefill: Prefill, sequences_R: Sequence[Sequence[Ids]]) -> list[list[Tensor]]:
    """For each row of the prefill, log p(y_t | x, z, y_<t) of each of its sequences: (T,) each."""
    results: list[list[Tensor]] = []
    vocabulary = prefill.logits_RV.shape[-1]
    for rows in _chunks(sequences_R, max(1, _LOGITS_AT_ONCE // (vocabulary * _LONGEST_RUN))):
        results += _score(generator, prefill.part(rows), sequences_R[rows])
    return results


def _score(generator: Generator, prefill: Prefill, sequences_R: Sequence[Sequence[Ids]]) -> list[list[Tensor]]:
    device = generator.device
    flat = [(row, ids) for row, sequences in enumerate(sequences_R) for ids in sequences]
    width = max((len(ids) for _, ids in flat), default=0)
    precision = torch.promote_types(prefill.logits_RV.dtype, torch.float32)
    scores_NT = torch.zeros(len(flat), width, dtype=precision, device=device)

    def note(logits_MTV: Tensor, at: Sequence[int], first: int, last: int) -> None:
        """Take the tokens of depth ``first`` to ``last`` from the logits before them; ``at``: branch by sequence."""
        norm_MT = log_normalizer(logits_MTV)
        wanted = [
            (number, at[number], depth - first, depth, ids[depth])
            for number, (_, ids) in enumerate(flat)
            for depth in range(first, min(last, len(ids)))
        ]
        if wanted:
            sequence, branch, offset, depth, token = torch.tensor(wanted, device=device).unbind(1)
            scores_NT[sequence, depth] = logits_MTV[branch, offset, token].to(precision) - norm_MT[branch, offset]

    branches, branch_of = prefill.root, [row for row, _ in flat]
    note(prefill.logits_RV.unsqueeze(1), branch_of, 0, 1)
    for low, high in pairwise(_cuts(sequences_R)):
        chains: dict[tuple[int, Ids], int] = {}
        tokens: list[Ids] = []
        parents: list[int] = []
        now = [0] * len(flat)
        for number, (row, ids) in enumerate(flat):
            run = ids[low : min(high, len(ids) - 1)]  # the last token of a sequence needn't be read
            if not run:
                continue
            place = chains.setdefault((row, ids[: low + 1]), len(chains))
            if place == len(tokens):
                tokens.append(run)
                parents.append(branch_of[number])
            elif len(run) > len(tokens[place]):
                tokens[place] = run
            now[number] = place
        if not chains:
            break
        tokens_MT, _ = pad_rows(tokens, generator.prompt.pad_id)
        branches, logits = generator.extend(branches, torch.tensor(parents, device=device), tokens_MT.to(device))
        branch_of = now
        note(logits, now, low + 1, low + 1 + tokens_MT.shape[1])
    cut = iter([scores[: len(ids)] for scores, (_, ids) in zip(scores_NT, flat, strict=True)])
    return [[next(cut) for _ in sequences] for sequences in sequences_R]


def _cuts(sequences_R: Sequence[Sequence[Ids]]) -> list[int]:
    """The depths at which some row's sequences, without their last tokens, part, and more where these lie far apart."""
    cuts = {0}
    for sequences in sequences_R:
        read = sorted(ids[:-1] for ids in sequences if ids)
        for one, other in pairwise(read):  # sorted: neighbours share the longest prefixes
            depth = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
            if depth is not None:
                cuts.add(depth)
    longest = max((len(ids) - 1 for sequences in sequences_R for ids in sequences if ids), default=0)
    return sorted(cuts | {max(0, longest)} | set(range(0, longest, _LONGEST_RUN)))


def _chunks(sequences_R: Sequence[Sequence[Ids]], most: int) -> Iterator[slice]:
    """Ranges of rows that have so many sequences at most, but one row at least."""
    start, held = 0, 0
    for row, sequences in enumerate(sequences_R):
        if row > start and held + len(sequences) > most:
            yield slice(start, row)
            start, held = row, 0
        held += len(sequences)
    yield slice(start, len(sequences_R))
