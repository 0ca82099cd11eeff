"""The generator p(y|x,z) as the rest of ragray knows it, whatever its architecture.

Rows are (question, passage) pairs, R = B * K, question-major.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from ragray.batching import pad_rows
from ragray.config import GeneratorConfig
from ragray.formulas import cross_entropy
from ragray.generators.branches import Branches, KeysValues
from ragray.generators.prompt import Ids, PassagesBK, PromptTokenizer, Row
from ragray.precision import release_memory
from ragray.records import InputError


class TargetScores(NamedTuple):
    """log p(y_t | x, z, y_<t) of given answers, and which tokens are real."""

    token_logprobs_BKT: Tensor
    mask_BT: Tensor


@dataclass(frozen=True, slots=True)
class Prefill:
    """The state after the prompts, from which answers are scored and found without reading them again.

    ``root`` has one branch a row, before the first answer token, whose logits are ``logits_RV``.
    """

    root: Branches
    logits_RV: Tensor

    def __len__(self) -> int:
        return len(self.root)

    def part(self, rows: slice) -> Prefill:
        """That of a range of rows, without a copy."""
        root, row_R = self.root, self.root.row_N[: len(self.root.row_N[rows])]
        layers = root.layers and [KeysValues(keys[rows], values[rows]) for keys, values in root.layers]
        return Prefill(Branches(root.prompts.part(rows), row_R, layers, root.num_tokens), self.logits_RV[rows])


class Generator(nn.Module, ABC):
    """p(y|x,z) by a language model of transformers."""

    def __init__(self, model: nn.Module, prompt: PromptTokenizer) -> None:
        super().__init__()
        self.model: Any = model
        self.prompt = prompt
        self.dtype = cast(torch.dtype, self.model.dtype)

    @property
    def config(self) -> GeneratorConfig:
        return self.prompt.config

    @property
    def device(self) -> torch.device:
        return cast(torch.device, next(self.model.parameters()).device)

    @property
    def stop_ids(self) -> Ids:
        """The tokens that end an answer: the tokenizer's, the model's, and those of ``config.stop``."""
        ends = getattr(self.model.generation_config, "eos_token_id", None)
        more = [] if ends is None else ends if isinstance(ends, list) else [ends]
        return tuple(dict.fromkeys([*self.prompt.stop_ids, *more]))

    def save(self, folder: Path) -> None:
        """Write a plain Hugging Face folder plus the prompt."""
        self.model.save_pretrained(folder)
        self.prompt.save(folder)

    def train_last_layers(self, layers: int | None, rate: float) -> list[nn.Parameter]:
        """Choose what is trained: nothing (rate 0), everything (layers None), or the matrices of the last layers.

        Returns the weights.  The layers are those of the decoder, where there is an encoder too.

        Frozen layers below the first trained one keep no activations: autograd records nothing there.
        Trained weights become float32, so that small updates aren't rounded away under bfloat16.
        """
        self.model.requires_grad_(rate > 0 and layers is None)
        if rate > 0 and layers is not None:
            stack = self._layer_stack()
            if layers > len(stack):
                raise InputError(
                    f"train.optimizer.generator_layers is {layers}, but the generator has {len(stack)} layers"
                )
            for parameter in stack[len(stack) - layers :].parameters():
                parameter.requires_grad_(parameter.ndim > 1)  # float32 norms would lift all they touch to float32
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
        return trained

    def checkpoint_gradients(self) -> None:
        """Keep the inputs of layers only and compute the rest again in the backward pass.

        transformers does so in training mode alone, which would switch dropout on: it is set to 0 in these layers.
        """
        self.model.activation_checkpointing_enable({"use_reentrant": False})
        for module in self.model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = True
                for name, value in vars(module).items():
                    if name.endswith("dropout") and isinstance(value, float):
                        setattr(module, name, 0.0)

    def target_logprobs(
        self,
        questions: Sequence[str],
        passages_BK: PassagesBK | None,
        answers: Sequence[str],
        tokens_per_batch: int = 4096,
        passages_per_backward: int | None = None,
        label_smoothing: float = 0.0,
    ) -> TargetScores:
        """log p(y_t|x,z,y_<t) for every question under every passage, with gradient; shapes (B, K, T) and (B, T).

        Logits are computed at answer positions only.  ``passages_BK=None`` means closed book: K = 1, no passage.

        ``passages_per_backward`` bounds memory: so many rows are read at a time without keeping anything, and once more
        when the backward pass comes to them (the two passes of docs/how-it-trains.md).  The gradient is the same.
        """
        rows = self.prompt.rows(questions, passages_BK)
        targets_B = self.prompt.targets(answers)
        num_passages = len(rows) // max(1, len(questions))
        targets_R = [target for target in targets_B for _ in range(num_passages)]
        width = max(map(len, targets_R), default=0)
        size = passages_per_backward or len(rows)
        parts = []
        with self._precision():
            for at in range(0, len(rows), size):
                arguments = (rows[at : at + size], targets_R[at : at + size], tokens_per_batch, label_smoothing)
                if size < len(rows) and torch.is_grad_enabled():
                    logprobs = cast(Tensor, checkpoint(self._row_logprobs, *arguments, use_reentrant=False))
                    release_memory()  # else the freed activations of every part stay with the process
                    if logprobs.requires_grad:
                        logprobs.register_hook(lambda _: release_memory())
                else:
                    logprobs = self._row_logprobs(*arguments)
                parts.append(nn.functional.pad(logprobs, (0, width - logprobs.shape[1])))
        _, mask_BT = pad_rows(targets_B, 0)
        shape = (len(questions), num_passages, width)
        return TargetScores(torch.cat(parts).view(shape), mask_BT.bool().to(self.device))

    @torch.inference_mode()
    def prefill(
        self, questions: Sequence[str], passages_BK: PassagesBK | None, tokens_per_batch: int = 4096
    ) -> Prefill:
        """Read every prompt, each distinct one once."""
        with self._precision():
            return self._read(self.prompt.rows(questions, passages_BK), tokens_per_batch)

    @torch.inference_mode()
    def extend(self, branches: Branches, parent_N: Tensor, tokens_NT: Tensor) -> tuple[Branches, Tensor]:
        """Continue the branches at ``parent_N`` with T tokens each.

        Returns (the longer branches, the logits that follow each of the tokens (N, T, V)).  The branches given stay as
        they are, so that other continuations can be tried.
        """
        with self._precision():
            return self._extend(branches.choose(parent_N), tokens_NT)

    def _row_logprobs(
        self, rows: Sequence[Row], targets_R: Sequence[Ids], tokens_per_batch: int, label_smoothing: float
    ) -> Tensor:
        """Log-probabilities of every row's target tokens, (R, T), 0 at padding."""
        targets_RT, mask_RT = (x.to(self.device) for x in pad_rows(targets_R, 0))
        if targets_RT.shape[1] == 0:
            return torch.zeros(targets_RT.shape, device=self.device)
        given_R = [target[:-1] for target in targets_R]  # what is read of a target: its last token is only predicted
        logits_RTV = self._answer_logits(rows, given_R, tokens_per_batch)
        logprobs_RT = cross_entropy.target_logprobs(logits_RTV, targets_RT, label_smoothing)
        return torch.where(mask_RT.bool(), logprobs_RT, 0.0)

    @abstractmethod
    def _answer_logits(self, rows: Sequence[Row], given_R: Sequence[Ids], tokens_per_batch: int) -> Tensor:
        """Logits after every row's prompt and after each token given, (R, longest given + 1, V)."""

    @abstractmethod
    def _read(self, rows: Sequence[Row], tokens_per_batch: int) -> Prefill: ...

    @abstractmethod
    def _extend(self, branches: Branches, tokens_NT: Tensor) -> tuple[Branches, Tensor]: ...

    @abstractmethod
    def _layer_stack(self) -> nn.ModuleList: ...

    def _precision(self) -> torch.autocast:
        """Where trained weights are kept in float32 above a model of lower precision, compute in the lower one."""
        low = self.dtype in (torch.bfloat16, torch.float16)
        return torch.autocast(self.device.type, dtype=self.dtype if low else None, enabled=low)


def only_module_list(stack: nn.Module) -> nn.ModuleList:
    """The layers of a stack.

    Raises:
        InputError: if there isn't exactly one list of layers.
    """
    lists = [module for module in stack.children() if isinstance(module, nn.ModuleList)]
    if len(lists) != 1:
        raise InputError("train.optimizer.generator_layers needs a model with one stack of layers; leave it null")
    return lists[0]
