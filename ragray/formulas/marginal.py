"""The two marginal likelihoods of RAG and their posteriors (Lewis et al. 2020, arXiv 2005.11401, section 2.1).

Everything works on gathered target log-probabilities ``token_logprobs_BKT[b, k, t] = log p(y_t | x, z_k, y_<t)``, so
that no (B, K, T, V) array ever exists.  Masked positions (padding of shorter answers) may hold anything.
An empty answer has likelihood 1 and leaves the posterior equal to the prior.  ``-inf`` means impossible and is handled:
a token that is impossible under every passage gives ``-inf`` and a gradient of zero, never NaN.

Results are float32 or, for float64 inputs, float64, whatever precision the models ran in.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Variant = Literal["rag_token", "rag_sequence"]


def log_prior(scores_BK: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """log p(z|x) = log_softmax_K(q(x)·d(z) / temperature), over the K retrieved passages (eq. in section 2.2).

    Args:
        scores_BK: inner products of question and passage vectors.
        temperature: > 0; 1 for encoders trained on raw inner products such as DPR.  A learned one is a tensor of one
            value, and the gradient reaches it.

    Raises:
        ValueError: if the temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}")
    return torch.log_softmax(_at_least_float32(scores_BK) / temperature, dim=-1)


def log_likelihood(variant: Variant, log_prior_BK: Tensor, token_logprobs_BKT: Tensor, mask_BT: Tensor) -> Tensor:
    """log p(y|x), shape (B,), under the variant; see the two functions below."""
    if variant == "rag_sequence":
        return sequence_log_likelihood(log_prior_BK, token_logprobs_BKT, mask_BT)
    return token_log_likelihood(log_prior_BK, token_logprobs_BKT, mask_BT)


def sequence_log_likelihood(log_prior_BK: Tensor, token_logprobs_BKT: Tensor, mask_BT: Tensor) -> Tensor:
    """RAG-Sequence: log p(y|x) = logsumexp_K( log p(z|x) + sum_T log p(y_t|x,z,y_<t) ), shape (B,)."""
    return _logsumexp(sequence_joint(log_prior_BK, token_logprobs_BKT, mask_BT), dim=1)


def token_log_likelihood(log_prior_BK: Tensor, token_logprobs_BKT: Tensor, mask_BT: Tensor) -> Tensor:
    """RAG-Token: log p(y|x) = sum_T logsumexp_K( log p(z|x) + log p(y_t|x,z,y_<t) ), shape (B,)."""
    marginal_BT = _logsumexp(_token_joint(log_prior_BK, _without_padding(token_logprobs_BKT, mask_BT)), dim=1)
    return torch.where(mask_BT, marginal_BT, 0.0).sum(-1)


def posterior(variant: Variant, log_prior_BK: Tensor, token_logprobs_BKT: Tensor, mask_BT: Tensor) -> Tensor:
    """p(z|x,y), shape (B, K), each row summing to 1.

    RAG-Sequence has one latent passage per answer, and this is its posterior.  RAG-Token has one per token; the value
    is the mean of ``token_posterior`` over the answer's tokens: the share of the answer that each passage accounts for.
    """
    if variant == "rag_sequence":
        return _softmax(sequence_joint(log_prior_BK, token_logprobs_BKT, mask_BT), log_prior_BK)
    per_token_BKT = token_posterior(log_prior_BK, _without_padding(token_logprobs_BKT, mask_BT))
    weight_B1T = mask_BT.unsqueeze(1).to(per_token_BKT.dtype)
    length_B1 = weight_B1T.sum(-1)
    mean_BK = (per_token_BKT * weight_B1T).sum(-1) / length_B1.clamp(min=1)
    return torch.where(length_B1 > 0, mean_BK, _at_least_float32(log_prior_BK).exp())


def token_posterior(log_prior_BK: Tensor, token_logprobs_BKT: Tensor) -> Tensor:
    """p(z|x,y_t,y_<t) of RAG-Token, shape (B, K, T): the weights drawn in the paper's figure 2."""
    joint_BKT = _token_joint(log_prior_BK, token_logprobs_BKT)
    prior_BKT = log_prior_BK.unsqueeze(-1).expand_as(joint_BKT)
    return _softmax(joint_BKT, prior_BKT)


def sequence_joint(log_prior_BK: Tensor, token_logprobs_BKT: Tensor, mask_BT: Tensor) -> Tensor:
    """log p(z, y|x) = log p(z|x) + sum_T log p(y_t|x,z,y_<t) over the unmasked tokens, shape (B, K)."""
    answer_BK = _at_least_float32(_without_padding(token_logprobs_BKT, mask_BT)).sum(-1)
    return _at_least_float32(log_prior_BK) + answer_BK


def _token_joint(log_prior_BK: Tensor, token_logprobs_BKT: Tensor) -> Tensor:
    return _at_least_float32(log_prior_BK).unsqueeze(-1) + _at_least_float32(token_logprobs_BKT)


def _without_padding(token_logprobs_BKT: Tensor, mask_BT: Tensor) -> Tensor:
    """Padding replaced before any arithmetic: an infinity that is masked only afterwards leaves NaN in the gradient."""
    return torch.where(mask_BT.unsqueeze(1), token_logprobs_BKT, 0.0)


def _logsumexp(x: Tensor, dim: int) -> Tensor:
    """logsumexp whose gradient is zero, not NaN, where every entry is -inf."""
    impossible = torch.isneginf(x).all(dim=dim, keepdim=True)
    finite = torch.logsumexp(torch.where(impossible, 0.0, x), dim=dim)
    return torch.where(impossible.squeeze(dim), -torch.inf, finite)


def _softmax(joint: Tensor, log_prior_like: Tensor) -> Tensor:
    """Softmax over dimension 1; where y is impossible under every passage, it says nothing and the prior stands."""
    impossible = torch.isneginf(joint).all(dim=1, keepdim=True)
    return torch.softmax(torch.where(impossible, _at_least_float32(log_prior_like), joint), dim=1)


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
