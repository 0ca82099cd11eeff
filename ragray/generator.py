"""The generator p(y|x,z): a decoder-only language model that reads a passage, then the question, then answers.

A prompt is a passage part and a question part, tokenised apart.  The question can't be truncated away, and the state
after a passage doesn't depend on the question: it is computed once for every distinct passage of a call and shared.

Rows are (question, passage) pairs, R = B * K, question-major.  Training rows are right-padded: under causal attention
no real token ever sees the padding, so no attention mask is needed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import Cache, DynamicLayer

from ragray.batching import pad_rows, token_budget_batches
from ragray.config import GeneratorConfig
from ragray.records import InputError, Passage

PROMPT_FILE = "ragray_generator.json"

PassagesBK = Sequence[Sequence[Passage]]


class TargetScores(NamedTuple):
    """log p(y_t | x, z, y_<t) of given answers, and which tokens are real."""

    token_logprobs_BKT: Tensor
    mask_BT: Tensor


@dataclass(slots=True)
class Prefill:
    """The generator's state after the prompts, from which answers are scored and decoded without reading them again."""

    cache: Cache
    mask_RL: Tensor
    length_R: Tensor
    logits_RV: Tensor


class _Read(NamedTuple):
    """The key/value cache after the passage parts, its mask and lengths."""

    cache: Cache
    mask_RL: Tensor
    length_R: Tensor


class Generator(nn.Module):
    """p(y|x,z) by a causal language model."""

    def __init__(self, model: nn.Module, tokenizer: Any, config: GeneratorConfig) -> None:
        super().__init__()
        self.model: Any = model
        self.tokenizer = tokenizer
        self.config = config
        self.dtype = cast(torch.dtype, self.model.dtype)
        self.truncated_passages = 0
        breaks = [ids[0] for ids in self._tokenize(["\n", "\n\n"]) if len(ids) == 1]
        self.stop_ids = tuple(sorted({self.end_id, *breaks}))

    @classmethod
    def load(cls, folder: str | Path, config: GeneratorConfig, dtype: torch.dtype = torch.float32) -> Generator:
        """Load a Hugging Face folder (or hub name); a prompt saved there by ragray takes precedence over ``config``'s.

        Raises:
            InputError: if there is no causal language model at ``folder``.
        """
        saved = Path(folder) / PROMPT_FILE
        if saved.exists():
            config = GeneratorConfig(**{**json.loads(saved.read_text(encoding="utf-8")), "model": config.model})
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        except (OSError, ValueError) as error:
            raise InputError(f"no decoder-only generator at {folder}: {error}") from error
        return cls(model, tokenizer, config).eval()

    def save(self, folder: Path) -> None:
        """Write a plain Hugging Face folder plus the prompt."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        settings = self.config.model_dump(exclude={"model"})
        (folder / PROMPT_FILE).write_text(json.dumps(settings, indent=1), encoding="utf-8")

    def train_last_layers(self, layers: int | None, rate: float) -> list[nn.Parameter]:
        """Choose what is trained: nothing (rate 0), everything (layers None), or the matrices of the last layers.

        Returns the weights.

        Frozen layers below the first trained one keep no activations: autograd records nothing there.
        Trained weights become float32, so that small updates aren't rounded away under bfloat16.
        """
        self.model.requires_grad_(rate > 0 and layers is None)
        if rate > 0 and layers is not None:
            stack = self._layer_stack()
            if layers > len(stack):
                raise InputError(f"train.generator_layers is {layers}, but the generator has {len(stack)} layers")
            for parameter in stack[len(stack) - layers :].parameters():
                parameter.requires_grad_(parameter.ndim > 1)  # float32 norms would lift all they touch to float32
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.data = parameter.data.float()
        return trained

    def target_logprobs(
        self,
        questions: Sequence[str],
        passages_BK: PassagesBK | None,
        answers: Sequence[str],
        tokens_per_batch: int = 4096,
    ) -> TargetScores:
        """log p(y_t|x,z,y_<t) for every question under every passage, with gradient; shapes (B, K, T) and (B, T).

        Logits are computed at answer positions only.  ``passages_BK=None`` means closed book: K = 1, no passage.
        """
        targets_B = self.tokenize_answers(answers)
        with self._precision():
            read = self._read_passages(passages_BK, len(questions), tokens_per_batch)
            num_passages = len(read.length_R) // len(questions)
            questions_R = _repeat(self.tokenize_questions(questions), num_passages)
            targets_R = _repeat(targets_B, num_passages)
            suffixes_R = [question + target for question, target in zip(questions_R, targets_R, strict=True)]
            hidden_RL, _ = self._read_suffixes(read, suffixes_R)
            targets_RT, mask_RT = (x.to(self.device) for x in pad_rows(targets_R, 0))
            first_R1 = torch.tensor([[len(question) - 1] for question in questions_R], device=self.device)
            before_RT = first_R1 + torch.arange(targets_RT.shape[1], device=self.device)
            before_RT = before_RT.clamp(max=hidden_RL.shape[1] - 1)  # where there is no target, any place will do
            answer_hidden = hidden_RL.gather(1, before_RT.unsqueeze(-1).expand(-1, -1, hidden_RL.shape[-1]))
            logprobs_RT = -_cross_entropy(self._logits(answer_hidden), targets_RT) * mask_RT
        shape = (len(questions), num_passages, targets_RT.shape[1])
        return TargetScores(logprobs_RT.view(shape), mask_RT.view(shape)[:, 0].bool())

    @torch.inference_mode()
    def prefill(
        self, questions: Sequence[str], passages_BK: PassagesBK | None, tokens_per_batch: int = 4096
    ) -> Prefill:
        """Read every prompt once, each distinct passage once, and keep the key/value cache."""
        read = self._read_passages(passages_BK, len(questions), tokens_per_batch)
        suffixes_R = _repeat(self.tokenize_questions(questions), len(read.length_R) // len(questions))
        hidden_RL, mask_RL = self._read_suffixes(read, suffixes_R)
        suffix_length_R = mask_RL.sum(1)
        last = hidden_RL[torch.arange(len(suffixes_R), device=self.device), suffix_length_R - 1]
        mask_RL = torch.cat([read.mask_RL, mask_RL], dim=1)
        return Prefill(read.cache, mask_RL, read.length_R + suffix_length_R, self._logits(last))

    @torch.inference_mode()
    def score(self, prefill: Prefill, targets_R: Sequence[Sequence[int]]) -> Tensor:
        """log p(y_t|x,z,y_<t) of one target a row, float32 (R, T), 0 at padding; the prefill is left as it was."""
        ids_RT, mask_RT = (x.to(self.device) for x in pad_rows(targets_R, 0))
        logits = prefill.logits_RV.unsqueeze(1)
        if ids_RT.shape[1] > 1:
            held = prefill.cache.get_seq_length()
            more = self._forward(
                ids_RT[:, :-1],
                cache=prefill.cache,
                mask=torch.cat([prefill.mask_RL, mask_RT[:, :-1]], dim=1),
                start_R=prefill.length_R,
            )
            prefill.cache.crop(held - prefill.cache.get_seq_length())
            logits = torch.cat([logits, self._logits(more)], dim=1)
        return -_cross_entropy(logits, ids_RT) * mask_RT

    @torch.inference_mode()
    def step(self, prefill: Prefill, token_R: Tensor) -> None:
        """Append one token to every row; ``prefill`` then holds the next logits."""
        one = torch.ones_like(token_R).unsqueeze(1)
        mask = torch.cat([prefill.mask_RL, one], dim=1)
        hidden = self._forward(token_R.unsqueeze(1), cache=prefill.cache, mask=mask, start_R=prefill.length_R)
        prefill.mask_RL, prefill.length_R = mask, prefill.length_R + 1
        prefill.logits_RV = self._logits(hidden[:, -1])

    @property
    def device(self) -> torch.device:
        return cast(torch.device, next(self.model.parameters()).device)

    def stops(self, tokens: Tensor) -> Tensor:
        """Which of the tokens end an answer: the end token or a line break; bool, of the same shape."""
        return torch.isin(tokens, torch.tensor(self.stop_ids, device=tokens.device))

    @property
    def end_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    def tokenize_answers(self, answers: Sequence[str]) -> list[list[int]]:
        """Answer tokens with the end token, cut to ``max_answer_tokens`` (the end token then goes first)."""
        limit = self.config.max_answer_tokens
        texts = [self.config.answer_template.format(answer=answer) for answer in answers]
        return [[*ids, self.end_id][:limit] for ids in self._tokenize(texts)]

    def tokenize_passages(self, passages: Sequence[Passage]) -> list[list[int]]:
        template, limit = self.config.passage_template, self.config.max_passage_tokens
        rows = self._tokenize([template.format(title=passage.title, text=passage.text) for passage in passages])
        self.truncated_passages += sum(len(row) > limit for row in rows)
        return [row[:limit] for row in rows]

    def tokenize_questions(self, questions: Sequence[str]) -> list[list[int]]:
        """Question parts; one over the limit loses words of the question, never what the template puts after it."""
        template, limit = self.config.question_template, self.config.max_question_tokens
        rows = self._tokenize([template.format(question=question) for question in questions])
        for index, question in enumerate(questions):
            ids = self._tokenize([question])[0]
            while len(rows[index]) > limit and len(ids) > 1:
                ids = ids[: max(1, len(ids) - (len(rows[index]) - limit))]
                kept = self.tokenizer.decode(ids).rstrip("\ufffd")  # the half of a character that was cut in two
                rows[index] = self._tokenize([template.format(question=kept)])[0]
        return rows

    def decode(self, ids: Sequence[int]) -> str:
        """Answer text: up to the end token, and only the first line."""
        text = cast(str, self.tokenizer.decode([token for token in ids if token != self.end_id]))
        lines = text.strip().splitlines()
        return lines[0].strip() if lines else ""

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return cast(list[list[int]], self.tokenizer(list(texts), add_special_tokens=False).input_ids)

    def _read_passages(self, passages_BK: PassagesBK | None, num_questions: int, tokens_per_batch: int) -> _Read:
        """The state after every row's passage part; each distinct passage is read once and shared, with gradient."""
        if passages_BK is None:
            nothing = torch.zeros(num_questions, 0, dtype=torch.long, device=self.device)
            return _Read(_new_cache(), nothing, nothing.sum(1))
        passages_R = [passage for row in passages_BK for passage in row]
        distinct = list(dict.fromkeys(passages_R))
        rows_P = self.tokenize_passages(distinct)
        _, mask_PL = pad_rows(rows_P, 0)
        batches = token_budget_batches([len(row) for row in rows_P], tokens_per_batch)
        layers: list[tuple[list[Tensor], list[Tensor]]] = []
        for positions in batches:
            ids, _ = pad_rows([rows_P[position] for position in positions], self.end_id)
            held = self.model.base_model(input_ids=ids.to(self.device), use_cache=True).cache
            padding = (0, 0, 0, mask_PL.shape[1] - ids.shape[1])
            for number, layer in enumerate(held.layers):
                if number == len(layers):
                    layers.append(([], []))
                layers[number][0].append(nn.functional.pad(layer.keys, padding))
                layers[number][1].append(nn.functional.pad(layer.values, padding))
        read_order = [distinct[position] for positions in batches for position in positions]
        place = {passage: index for index, passage in enumerate(read_order)}
        rows = torch.tensor([place[passage] for passage in passages_R], device=self.device)
        cache = _new_cache()
        for number, (keys, values) in enumerate(layers):
            cache.update(torch.cat(keys)[rows], torch.cat(values)[rows], number)
        number_of = {passage: index for index, passage in enumerate(distinct)}
        mask_RL = mask_PL[torch.tensor([number_of[passage] for passage in passages_R])].to(self.device)
        return _Read(cache, mask_RL, mask_RL.sum(1))

    def _read_suffixes(self, read: _Read, suffixes_R: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """(hidden states of what follows the passages, its mask); the suffixes are added to the cache."""
        ids, mask = (x.to(self.device) for x in pad_rows(suffixes_R, self.end_id))
        whole_mask = torch.cat([read.mask_RL, mask], dim=1)
        return self._forward(ids, cache=read.cache, mask=whole_mask, start_R=read.length_R), mask

    def _precision(self) -> torch.autocast:
        """Where trained weights are kept in float32 above a model of lower precision, compute in the lower one."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)

    def _forward(self, ids: Tensor, cache: Cache, mask: Tensor, start_R: Tensor) -> Tensor:
        positions = start_R.unsqueeze(1) + torch.arange(ids.shape[1], device=ids.device)
        output = self.model.base_model(
            input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True
        )
        return cast(Tensor, output.last_hidden_state)

    def _logits(self, hidden: Tensor) -> Tensor:
        return cast(Tensor, self.model.get_output_embeddings()(hidden))

    def _layer_stack(self) -> nn.ModuleList:
        stacks = [module for module in self.model.base_model.children() if isinstance(module, nn.ModuleList)]
        if len(stacks) != 1:
            raise InputError("train.generator_layers needs a model with one stack of layers; leave it null")
        return stacks[0]


class _RoomyLayer(DynamicLayer):
    """Keys and values of one layer with room for more: a new token is written in place, nothing before it copied."""

    _ROOM = 64

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        held = self.get_seq_length()
        needed = held + key_states.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._rooms: list[Tensor] = []
        if not self._rooms or self._rooms[0].shape[-2] < needed:
            rooms = [
                states.new_empty(*states.shape[:-2], needed + self._ROOM, states.shape[-1])
                for states in (key_states, value_states)
            ]
            if held and self.keys is not None and self.values is not None:
                rooms[0][..., :held, :] = self.keys
                rooms[1][..., :held, :] = self.values
            self._rooms = rooms
        for room, states in zip(self._rooms, (key_states, value_states), strict=True):
            room[..., held:needed, :] = states
        self.keys, self.values = (room[..., :needed, :] for room in self._rooms)
        return self.keys, self.values


def _new_cache() -> Cache:
    """Writing in place is for inference; where a gradient is wanted, every state stays as it was."""
    return Cache(layer_class_to_replicate=DynamicLayer if torch.is_grad_enabled() else _RoomyLayer)


def _repeat(rows_B: Sequence[list[int]], times: int) -> list[list[int]]:
    return [row for row in rows_B for _ in range(times)]


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """-log softmax(logits)[target], float32, same shape as targets."""
    flat = nn.functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), reduction="none")
    return flat.view(targets.shape)
