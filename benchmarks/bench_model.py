"""The RAG model against transformers' RAG: loss with backward, both decodings, and memory.

Same random weights of BART-base size, same token ids, same threads, one run; every measurement in a process of its
own, so that peaks of memory don't mix.  Prints a table; --json FILE writes {claim: {ours, peer, ratio, bar, met, unit}}

    python benchmarks/bench_model.py --json results.json        # some minutes on two cores
    python benchmarks/bench_model.py --quick                    # a small model, to see that it runs
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from claims import write_claims
from torch import Tensor

QUESTIONS, PROMPT_TOKENS, NEW_TOKENS, BEAMS = 4, 150, 16, 4


@dataclass(frozen=True)
class Size:
    """The generator's size; the default is BART-base's."""

    hidden: int = 768
    layers: int = 6
    heads: int = 12
    vocabulary: int = 50265


SMALL = Size(hidden=64, layers=2, heads=4, vocabulary=1000)


@dataclass(frozen=True)
class Claim:
    """A number of ours beside the peer's.  ``at_least``: the bar is a lower limit of the ratio, else an upper one."""

    name: str
    unit: str
    ours: float
    peer: float
    bar: float
    at_least: bool

    @property
    def ratio(self) -> float:
        return self.peer / self.ours if self.at_least else self.ours / self.peer

    @property
    def met(self) -> bool:
        return self.ratio >= self.bar if self.at_least else self.ratio <= self.bar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model and one repetition")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    size, repeats = (SMALL, 1) if options.quick else (Size(), 3)
    claims: list[Claim] = []
    for passages, bar in ((5, 4.0), (10, 6.0)):
        found = _in_process(_decode, size, options.threads, passages, repeats)
        claims.append(Claim(f"thorough decoding, K={passages}", "s", *found["rag_sequence"], bar, at_least=True))
        claims.append(Claim(f"RAG-Token beam a token, K={passages}", "s", *found["rag_token"], 1.5, at_least=True))
    for variant in ("rag_sequence", "rag_token"):
        ours, peer = (
            _in_process(_loss_of_logits, size, options.threads, variant, who, 3 * repeats) for who in ("ours", "peer")
        )
        name = f"{variant} loss after the logits"
        claims.append(Claim(name, "s", ours["seconds"], peer["seconds"], 3.0, at_least=True))
        claims.append(Claim(f"{name}: extra memory", "MiB", ours["extra"], peer["extra"], 0.5, at_least=False))
    for variant in ("rag_sequence", "rag_token"):
        both = _in_process(_train, size, options.threads, variant, 2 * repeats)
        claims.append(Claim(f"{variant} loss and backward", "s", *both, 1.0, at_least=True))
    small, large = (_in_process(_train_memory, size, options.threads, passages, 5) for passages in (5, 50))
    claims.append(
        Claim("peak memory, K=50 beside K=5, passages_per_backward=5", "MiB", large, small, 1.25, at_least=False)
    )
    _show(claims)
    if options.json:
        write_claims(options.json, claims)


def _show(claims: list[Claim]) -> None:
    print(f"{'':54} {'ours':>9} {'peer':>9} {'ratio':>7} {'bar':>7}")
    for claim in claims:
        bar = f"{'>=' if claim.at_least else '<='} {claim.bar:g}"
        print(
            f"{claim.name:54} {claim.ours:9.3f} {claim.peer:9.3f} {claim.ratio:7.2f} {bar:>7} {claim.unit:4}"
            f"{'met' if claim.met else 'NOT MET'}"
        )


def _in_process(work: Callable[..., Any], size: Size, threads: int, *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_with_threads, (work, size, threads, *arguments))


def _with_threads(work: Callable[..., Any], size: Size, threads: int, *arguments: Any) -> Any:
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    return work(size, *arguments)


class _Case:
    """A generator, questions with K passages each, and transformers' RAG over the same weights and token ids."""

    def __init__(self, size: Size, num_passages: int) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers, processors
        from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

        from ragray.config import GeneratorConfig
        from ragray.generators.prompt import PromptTokenizer
        from ragray.generators.seq2seq import Seq2SeqGenerator
        from ragray.records import Passage

        special = ["<s>", "<pad>", "</s>", "<unk>"]
        words = [f"w{number}" for number in range(size.vocabulary - len(special))]
        core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(special + words)}, "<unk>"))
        core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        ends = [("<s>", 0), ("</s>", 2)]
        core.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=ends)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=core, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
        )
        self.config = BartConfig(
            vocab_size=size.vocabulary,
            d_model=size.hidden,
            encoder_layers=size.layers,
            decoder_layers=size.layers,
            encoder_attention_heads=size.heads,
            decoder_attention_heads=size.heads,
            encoder_ffn_dim=4 * size.hidden,
            decoder_ffn_dim=4 * size.hidden,
            forced_eos_token_id=None,
        )
        self.bart = BartForConditionalGeneration(self.config).eval()
        settings = GeneratorConfig(
            model="bart",
            passage_template="{text}",
            question_template=" {question}",
            answer_template="{answer}",
            stop=(),
        )
        self.generator = Seq2SeqGenerator(self.bart, PromptTokenizer(tokenizer, settings, joint=True))
        self.num_passages = num_passages

        def text(length: int) -> str:
            return " ".join(words[index] for index in torch.randint(len(words), (length,)))

        self.questions = [text(12) for _ in range(QUESTIONS)]
        self.answers = [text(NEW_TOKENS - 2) for _ in range(QUESTIONS)]
        self.passages_BK = [
            [Passage(f"{row}-{rank}", "", text(PROMPT_TOKENS - 14)) for rank in range(num_passages)]
            for row in range(QUESTIONS)
        ]
        self.scores_BK = torch.randn(QUESTIONS, num_passages)

    def peer(self, variant: str) -> tuple[Any, dict[str, Any]]:
        """(transformers' model, its inputs)."""
        from transformers import (
            DPRConfig,
            DPRQuestionEncoder,
            RagConfig,
            RagSequenceForGeneration,
            RagTokenForGeneration,
        )

        small = DPRConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
        config = RagConfig.from_question_encoder_generator_configs(small, self.config, n_docs=self.num_passages)
        kind = RagSequenceForGeneration if variant == "rag_sequence" else RagTokenForGeneration
        model = kind(config=config, question_encoder=DPRQuestionEncoder(small), generator=self.bart).eval()
        rows = self.generator.prompt.rows(self.questions, self.passages_BK)
        ids = torch.tensor([row.question for row in rows])
        assert ids.shape[1] == PROMPT_TOKENS
        return model, {"context_input_ids": ids, "context_attention_mask": torch.ones_like(ids)}

    def labels(self) -> Tensor:
        """As transformers' RAG wants them: the token that decoding starts from, then the answer."""
        targets = torch.tensor(self.generator.prompt.targets(self.answers))
        return torch.cat([torch.full((QUESTIONS, 1), self.config.decoder_start_token_id), targets], dim=1)

    def our_loss(self, variant: Any, scores_BK: Tensor, passages_per_backward: int | None = None) -> Tensor:
        from ragray.formulas import marginal

        scored = self.generator.target_logprobs(
            self.questions, self.passages_BK, self.answers, passages_per_backward=passages_per_backward
        )
        return -marginal.log_likelihood(variant, marginal.log_prior(scores_BK), *scored)


def _decode(size: Size, num_passages: int, repeats: int) -> dict[str, tuple[float, float]]:
    """(ours, peer's) seconds: of a whole call for RAG-Sequence, of a token for RAG-Token; the best of some turns.

    The ids must be equal.
    """
    from ragray.config import DecodingConfig
    from ragray.decoding.answers import decode

    case = _Case(size, num_passages)
    settings = DecodingConfig(num_beams=BEAMS, max_new_tokens=NEW_TOKENS)
    seconds = {}
    for variant in ("rag_sequence", "rag_token"):
        model, inputs = case.peer(variant)

        def ours(variant: Any = variant) -> list[list[int]]:
            prefill = case.generator.prefill(case.questions, case.passages_BK)
            found = decode(variant, case.generator, prefill, case.scores_BK.log_softmax(-1), settings)
            return [list(answers[0].tokens) for answers in found]

        def theirs(model: Any = model, inputs: dict[str, Any] = inputs) -> list[list[int]]:
            ids = model.generate(
                **inputs,
                doc_scores=case.scores_BK,
                n_docs=num_passages,
                num_beams=BEAMS,
                max_length=NEW_TOKENS + 1,  # with the start token; RAG-Token ignores max_new_tokens
            )
            return [row[1:] for row in ids.tolist()]

        turns = [(_timed(ours, 1), _timed(theirs, 1)) for _ in range(repeats)]  # both see the same machine
        our_time, their_time = (min(turn[side][0] for turn in turns) for side in (0, 1))
        our_ids, their_ids = (turns[0][side][1] for side in (0, 1))
        same = [ids == theirs[: len(ids)] for ids, theirs in zip(our_ids, their_ids, strict=True)]
        assert all(same), f"{variant}: different answers for questions {[at for at, ok in enumerate(same) if not ok]}"
        length = max(map(len, our_ids)) if variant == "rag_token" else 1
        seconds[variant] = (our_time / length, their_time / length)
    return seconds


def _loss_of_logits(size: Size, variant: Any, who: str, repeats: int) -> dict[str, float]:
    """Seconds and extra MiB of forward and backward from the logits on."""
    from ragray.formulas import cross_entropy, marginal

    num_passages = 5
    rows = QUESTIONS * num_passages
    logits = torch.randn(rows, NEW_TOKENS + (who == "peer"), size.vocabulary).requires_grad_()
    scores_BK = torch.randn(QUESTIONS, num_passages, requires_grad=True)
    targets = torch.randint(4, size.vocabulary, (QUESTIONS, NEW_TOKENS))
    if who == "peer":
        model, _ = _Case(SMALL, num_passages).peer(variant)
        labels = torch.cat([torch.full((QUESTIONS, 1), 2), targets], dim=1)

    def step() -> None:
        if who == "peer":
            loss = model.get_nll(logits, scores_BK, labels, n_docs=num_passages)
        else:
            shape = (QUESTIONS, num_passages, NEW_TOKENS)
            logprobs = cross_entropy.target_logprobs(logits, targets.repeat_interleave(num_passages, dim=0))
            mask = torch.ones(QUESTIONS, NEW_TOKENS, dtype=torch.bool)
            loss = -marginal.log_likelihood(variant, marginal.log_prior(scores_BK), logprobs.view(shape), mask)
        logits.grad = None
        loss.sum().backward()

    seconds, _ = _timed(step, repeats)
    logits.grad = None
    before = _reset_peak()
    step()
    return {"seconds": seconds, "extra": max(0.1, _peak() - before)}


def _train(size: Size, variant: str, repeats: int) -> tuple[float, float]:
    """(ours, peer's) seconds of loss and backward at K=5, the best of some turns; the losses must be equal."""
    case = _Case(size, 5)
    model, inputs = case.peer(variant)
    scores_BK = case.scores_BK.requires_grad_()
    labels = case.labels()

    def ours() -> Tensor:
        case.bart.zero_grad(set_to_none=True)
        loss_B = case.our_loss(variant, scores_BK)
        loss_B.sum().backward()
        return loss_B.detach()

    def theirs() -> Tensor:
        case.bart.zero_grad(set_to_none=True)
        loss_B = model(**inputs, doc_scores=scores_BK, labels=labels).loss
        loss_B.sum().backward()
        return loss_B.detach()

    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    losses: dict[str, Tensor] = {}
    for _ in range(repeats):  # by turns, so that both see the same machine
        for name, step in (("ours", ours), ("theirs", theirs)):
            seconds, loss_B = _timed(step, 1)
            times[name].append(seconds)
            losses[name] = loss_B
        torch.testing.assert_close(losses["ours"], losses["theirs"], atol=1e-3, rtol=1e-4)
    return min(times["ours"]), min(times["theirs"])


def _train_memory(size: Size, num_passages: int, passages_per_backward: int) -> float:
    """Peak MiB of the whole process while it trains a step."""
    case = _Case(size, num_passages)
    scores_BK = case.scores_BK.requires_grad_()
    _reset_peak()
    case.our_loss("rag_sequence", scores_BK, passages_per_backward).sum().backward()
    return _peak()


def _timed(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """(median seconds after a warm-up if there is more than one repetition, the last result)."""
    if repeats > 1:
        work()
    seconds, result = [], None
    for _ in range(repeats):
        started = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds), result


def _reset_peak() -> float:
    """Start measuring the peak anew; returns what is in use now, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> float:
    return _status("VmHWM")


def _status(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


if __name__ == "__main__":
    main()
