"""The texts that a generator reads and writes, as token ids.

A prompt is a passage part and a question part.  Where both don't fit, the passage is cut, never the question.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from transformers import AutoTokenizer

from ragray.config import GeneratorConfig
from ragray.records import InputError, Passage

PROMPT_FILE = "ragray_generator.json"
QUESTION_TOKENIZER = "question_tokenizer"

Ids = tuple[int, ...]
PassagesBK = Sequence[Sequence[Passage]]


class _Part(NamedTuple):
    text: str
    ids: Ids


class Row(NamedTuple):
    """What the generator reads for one (question, passage) pair: the two parts, which together are the input."""

    passage: Ids
    question: Ids


@dataclass(slots=True)
class Cuts:
    """How often a text was over its limit, of how many: the distinct ones of each call."""

    passages: int = 0
    passages_seen: int = 0
    questions: int = 0
    questions_seen: int = 0
    answers: int = 0
    answers_seen: int = 0


@dataclass(slots=True)
class PromptTokenizer:
    """The prompt of a generator: its templates and limits, over the model's own tokenizer.

    ``joint`` tokenizers read both parts of a prompt as one text, between their special tokens: sequence-to-sequence
    models are used to it.  Otherwise the parts are tokenised apart, so that the state after a passage is the same for
    every question.  ``question_tokenizer`` is for models that were trained on questions which another tokenizer, the
    question encoder's, had read and written back (lower case, its spacing): transformers' RAG.
    """

    tokenizer: Any
    config: GeneratorConfig
    joint: bool = False
    question_tokenizer: Any = None
    cuts: Cuts = field(default_factory=Cuts)
    _special: tuple[Ids, Ids] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._special = self._special_tokens()

    @classmethod
    def load(cls, folder: str | Path, config: GeneratorConfig, joint: bool) -> PromptTokenizer:
        """Of a model folder (or hub name); a prompt that ragray saved there takes precedence over ``config``'s.

        Raises:
            InputError: if the folder has no tokenizer.
        """
        saved = Path(folder) / PROMPT_FILE
        if saved.exists():
            config = GeneratorConfig(**{**json.loads(saved.read_text(encoding="utf-8")), "model": config.model})
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            letter = tokenizer("a", add_special_tokens=False).input_ids
            if not letter or tokenizer.unk_token_id in letter:  # without files, transformers may make an empty one
                raise ValueError("what is there knows no letters")
            other = Path(folder) / QUESTION_TOKENIZER
            return cls(tokenizer, config, joint, AutoTokenizer.from_pretrained(other) if other.exists() else None)
        except (OSError, ValueError) as error:
            raise InputError(f"no tokenizer at {folder}: {error}") from error

    def save(self, folder: Path) -> None:
        """Into the model's folder, beside its weights."""
        self.tokenizer.save_pretrained(folder)
        settings = self.config.model_dump(mode="json", exclude={"model"})
        (folder / PROMPT_FILE).write_text(json.dumps(settings, indent=1), encoding="utf-8")
        if self.question_tokenizer is not None:
            self.question_tokenizer.save_pretrained(folder / QUESTION_TOKENIZER)

    @property
    def end_id(self) -> int:
        if self.tokenizer.eos_token_id is None:
            raise InputError(f"the tokenizer of {self.config.model} has no end token: set its eos_token")
        return int(self.tokenizer.eos_token_id)

    @property
    def pad_id(self) -> int:
        """Fills rows up; never read, except by models whose embedding of it is asked for."""
        pad = self.tokenizer.pad_token_id
        return self.end_id if pad is None else int(pad)

    @property
    def stop_ids(self) -> Ids:
        """The tokens that end an answer.

        Raises:
            InputError: if a text of ``stop``, other than the two line breaks of the default, isn't a single token.
        """
        found = [self.end_id]
        for text in self.config.stop:
            ids = self._tokenize([text])[0]
            if len(ids) == 1 and self.tokenizer.decode(ids) == text:
                found.append(ids[0])
            elif text.strip("\n"):
                raise InputError(
                    f"generator.stop has {text!r}, which is {len(ids)} tokens to this generator: it must be one"
                )
        return tuple(dict.fromkeys(found))

    def rows(self, questions: Sequence[str], passages_BK: PassagesBK | None) -> list[Row]:
        """The (question, passage) pairs, question-major: B * K rows.  No passages: closed book, one row a question."""
        asked = list(dict.fromkeys(questions))
        parts = dict(zip(asked, self._question_parts(asked), strict=True))
        if passages_BK is None:
            return [self._framed((), parts[question].ids) for question in questions]
        distinct = list(dict.fromkeys(passage for row in passages_BK for passage in row))
        texts = dict(zip(distinct, map(self._passage_text, distinct), strict=True))
        passage_ids = dict(zip(distinct, self._tokenize(map(self._rules, texts.values())), strict=True))
        pairs = [(question, passage) for question, row in zip(questions, passages_BK, strict=True) for passage in row]
        joined = self._joined(pairs, texts, parts) if self.joint else {}
        cut: set[Passage] = set()
        rows = []
        for question, passage in pairs:
            ids, asks = passage_ids[passage], parts[question].ids
            room = self._room(len(asks))
            if len(ids) > room:
                cut.add(passage)
            if self.joint and len(ids) <= room and len(joined[question, passage]) <= room + len(asks):
                rows.append(self._framed((), joined[question, passage]))
            else:
                rows.append(self._framed(ids[:room], asks))
        self.cuts.passages += len(cut)
        self.cuts.passages_seen += len(distinct)
        return rows

    def _joined(
        self, pairs: Sequence[tuple[str, Passage]], texts: Mapping[Passage, str], parts: Mapping[str, _Part]
    ) -> dict[tuple[str, Passage], Ids]:
        distinct = list(dict.fromkeys(pairs))
        both = [self._rules(texts[passage] + parts[question].text) for question, passage in distinct]
        return dict(zip(distinct, self._tokenize(both), strict=True))

    def _question_parts(self, questions: Sequence[str]) -> list[_Part]:
        """One over the limit loses words of the question, never what the template puts after it."""
        limit = self.config.max_question_tokens
        texts = [self._question_text(question) for question in questions]
        parts = list(map(_Part, texts, self._tokenize(map(self._rules, texts))))
        for index, question in enumerate(questions):
            if len(parts[index].ids) <= limit:
                continue
            self.cuts.questions += 1
            ids = self._tokenize([question])[0]
            while len(parts[index].ids) > limit and len(ids) > 1:
                ids = ids[: max(1, len(ids) - (len(parts[index].ids) - limit))]
                kept = self.tokenizer.decode(ids).rstrip("\ufffd")  # the half of a character that was cut in two
                text = self._question_text(kept)
                parts[index] = _Part(text, self._tokenize([self._rules(text)])[0])
        self.cuts.questions_seen += len(parts)
        return parts

    def targets(self, answers: Sequence[str]) -> list[Ids]:
        """Answers as they are to be generated: with the end token, cut to ``max_answer_tokens`` (that goes first)."""
        limit = self.config.max_answer_tokens
        texts = [self.config.answer_template.format(answer=answer) for answer in answers]
        start, _ = self._special if self.joint else ((), ())
        end = (self.end_id,) if self.config.end_answers else ()
        if self.config.decoder_start is not None and start[:1] == (self.config.decoder_start,):
            start = start[1:]  # it is there already
        rows = [(*start, *ids, *end) for ids in self._tokenize(texts)]
        self.cuts.answers_seen += len(rows)
        self.cuts.answers += sum(len(row) > limit for row in rows)
        return [row[:limit] for row in rows]

    def text(self, ids: Sequence[int]) -> str:
        """The answer's text: up to the end token, and only the first line."""
        text = cast(str, self.tokenizer.decode(list(ids), skip_special_tokens=True))
        lines = text.strip().splitlines()
        return lines[0].strip() if lines else ""

    def _framed(self, passage: Ids, question: Ids) -> Row:
        start, end = self._special
        if self.joint:
            return Row((), (*start, *passage, *question, *end))
        if not question:
            raise InputError("a question came out empty: generator.question_template must hold some text")
        return Row((*start, *passage), question)

    def _room(self, question_tokens: int) -> int:
        """How many passage tokens there is room for beside a question part."""
        room = self.config.max_passage_tokens
        if self.config.max_prompt_tokens is not None:
            start, end = self._special
            special = len(start) + (len(end) if self.joint else 0)
            room = min(room, self.config.max_prompt_tokens - question_tokens - special)
        if room < 1:
            raise InputError(
                f"a question of {question_tokens} tokens leaves no room for a passage in "
                f"generator.max_prompt_tokens={self.config.max_prompt_tokens}: raise it, or lower max_question_tokens"
            )
        return room

    def _passage_text(self, passage: Passage) -> str:
        title = passage.title
        if self.config.text_rules == "hf_rag":
            title = title.removeprefix('"').removesuffix('"')
        return self.config.passage_template.format(title=title, text=passage.text)

    def _question_text(self, question: str) -> str:
        if self.question_tokenizer is not None:
            ids = self.question_tokenizer(question).input_ids
            question = self.question_tokenizer.decode(ids, skip_special_tokens=True)
        return self.config.question_template.format(question=question)

    def _rules(self, text: str) -> str:
        return text.replace("  ", " ") if self.config.text_rules == "hf_rag" else text

    def _special_tokens(self) -> tuple[Ids, Ids]:
        """The tokens that the tokenizer itself puts before and after a text."""
        plain, framed = self._tokenize(["a"])[0], tuple(self.tokenizer("a").input_ids)
        for start in range(len(framed) - len(plain) + 1):
            if framed[start : start + len(plain)] == plain:
                return framed[:start], framed[start + len(plain) :]
        return (), ()

    def _tokenize(self, texts: Iterable[str]) -> list[Ids]:
        rows = list(texts)
        if not rows:
            return []  # tokenizers refuse an empty batch
        return [tuple(ids) for ids in self.tokenizer(rows, add_special_tokens=False).input_ids]
