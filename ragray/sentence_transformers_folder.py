"""What a sentence-transformers folder says about its model: how vectors are pooled, which prompts go before a text, and
how long a text may be.

Read are ``modules.json``, the configurations of its modules in their old and their new form,
``sentence_bert_config.json`` and ``config_sentence_transformers.json``.  What can't be followed exactly is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragray.records import InputError

FILES = ("modules.json", "*config*.json", "*/config.json")
"""Patterns of the files that ``read`` reads."""

_POOLING = {"mean": "mean", "cls": "cls", "lasttoken": "last"}  # their name: ours
_POOLING_FLAGS = {  # of configurations from before version 6
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_QUESTION_PROMPTS = ("query",)
_PASSAGE_PROMPTS = ("document", "passage", "corpus")
_TRANSFORMER_SETTINGS = {  # those followed, or without effect on a text's vector
    "max_seq_length",
    "do_lower_case",
    "query_length",
    "document_length",
    "modality_config",
    "module_output_name",
    "unpad_inputs",
}


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The model as its author uses it; a limit is None where the folder has none.

    A prompt is what the author puts before a text.  The limits count tokens, special ones included.
    """

    pooling: str = "mean"
    normalize: bool = False
    question_prompt: str = ""
    passage_prompt: str = ""
    max_question_tokens: int | None = None
    max_passage_tokens: int | None = None
    lower_case: bool = False


def read(folder: Path, pooling: str | None = None) -> ModelCard:
    """The card of a folder; the default one, mean pooling and nothing else, if there is no ``modules.json``.

    Args:
        pooling: the pooling that is used whatever the folder says.

    Raises:
        InputError: for modules, pooling or settings that can't be followed.
    """
    listing = folder / "modules.json"
    if not listing.exists():
        return ModelCard(pooling=pooling or "mean")
    modules = json.loads(listing.read_text(encoding="utf-8"))
    kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"], ["Transformer"]):
        raise InputError(
            f"{listing} lists {', '.join(kinds)}, but ragray runs Transformer, Pooling and, after them, Normalize: "
            "choose a model of these"
        )
    places = {kind: folder / module["path"] for kind, module in zip(kinds, modules, strict=True)}
    _check_normalize(places)
    transformer = _transformer_settings(places["Transformer"] / "sentence_bert_config.json")
    question_prompt, passage_prompt = _prompts(_read(folder / "config_sentence_transformers.json"))
    longest = transformer.get("max_seq_length")
    if "Pooling" in places:
        file = places["Pooling"] / "config.json"
        settings = _read(file)
        if not settings.get("include_prompt", True):
            raise InputError(
                f"{file}: include_prompt is false, but ragray pools all tokens, the prompt's too: choose another model"
            )
        pooling = pooling or _pooling(settings, file)
    return ModelCard(
        pooling=pooling or "mean",
        normalize="Normalize" in places,
        question_prompt=question_prompt,
        passage_prompt=passage_prompt,
        max_question_tokens=transformer.get("query_length") or longest,
        max_passage_tokens=transformer.get("document_length") or longest,
        lower_case=bool(transformer.get("do_lower_case")),
    )


def _read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def _check_normalize(places: Mapping[str, Path]) -> None:
    if "Normalize" not in places:
        return
    file = places["Normalize"] / "config.json"
    for name, value in _read(file).items():
        if name.startswith("module_") and value not in (None, "sentence_embedding"):
            raise InputError(
                f"{file}: {name}={value}, but ragray normalizes the pooled vector (sentence_embedding) only"
            )


def _transformer_settings(file: Path) -> dict[str, Any]:
    """The settings of the transformer, without those that say nothing."""
    settings = {name: value for name, value in _read(file).items() if value}
    if settings.pop("transformer_task", "feature-extraction") != "feature-extraction":
        raise InputError(f"{file}: only transformer_task=feature-extraction gives vectors of texts")
    strange = sorted(settings.keys() - _TRANSFORMER_SETTINGS)
    if strange:
        raise InputError(
            f"{file}: ragray doesn't follow {strange[0]}={settings[strange[0]]!r}; if the vectors don't depend on it, "
            "take it out of a copy of the folder"
        )
    ways = settings.get("modality_config", {"text": {"method_output_name": "last_hidden_state"}})
    if "message" in ways or ways.get("text", {}).get("method_output_name") != "last_hidden_state":
        raise InputError(
            f"{file}: modality_config reads texts as {ways}, but ragray takes the last_hidden_state of text"
        )
    return settings


def _pooling(settings: Mapping[str, Any], file: Path) -> str:
    modes = settings.get("pooling_mode") or [mode for flag, mode in _POOLING_FLAGS.items() if settings.get(flag)]
    modes = [modes] if isinstance(modes, str) else list(modes) or ["mean"]
    if len(modes) > 1 or modes[0] not in _POOLING:
        raise InputError(
            f"{file}: the model pools by {' + '.join(modes)}, but ragray by one of {', '.join(_POOLING)}: choose "
            "another model, or set encoder.pooling if this one suits too"
        )
    return _POOLING[modes[0]]


def _prompts(settings: Mapping[str, Any]) -> tuple[str, str]:
    """What goes before a question, and before a passage.

    An empty prompt counts as none, since sentence-transformers adds empty ones when it saves.  The default prompt
    stands in, but not on passages if it is the questions' own, or the other way round.
    """
    prompts: dict[str, str] = {name: text for name, text in (settings.get("prompts") or {}).items() if text}
    default = settings.get("default_prompt_name")
    found = []
    for names, others in ((_QUESTION_PROMPTS, _PASSAGE_PROMPTS), (_PASSAGE_PROMPTS, _QUESTION_PROMPTS)):
        candidates = [*names, default] if default not in others else list(names)
        found.append(next((prompts[name] for name in candidates if name in prompts), ""))
    return found[0], found[1]
