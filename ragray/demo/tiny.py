"""Demo material for tests and dry runs: invented countries, and random models of a few thousand weights.

Nothing is fetched.  The models are deterministic, answer nonsense, and are of the same classes as real ones.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ragray.demo.packages import quiet_transformers

VERSION = "tiny-demo-2"
END = "<end>"

_COUNTRIES = (
    ("Norland", "Skarholm", "Ingrid Vale", "crown", "Mount Hvit"),
    ("Esteria", "Porto Claro", "Tomas Reyna", "real", "Cerro Alto"),
    ("Varuna", "Samudra", "Meera Iyer", "rupee", "Neel Peak"),
    ("Oskania", "Brevin", "Pavel Dorn", "mark", "Graukopf"),
    ("Tamoa", "Leilani Bay", "Sefa Tui", "shell", "Mauna Rua"),
    ("Kharim", "Al Zahra", "Yusuf Hadad", "dinar", "Jebel Sifr"),
    ("Belmora", "Aldcaster", "Ruth Penn", "pound", "Gannet Tor"),
    ("Zembara", "Kisoto", "Amani Otieno", "shilling", "Mount Duma"),
    ("Lirania", "Vallespina", "Chiara Monti", "lira", "Monte Sereno"),
    ("Quelia", "San Telmo", "Diego Paz", "peso", "Nevado Azul"),
    ("Drosk", "Volgar", "Mira Kostova", "lev", "Black Ridge"),
    ("Hanji", "Seoran", "Jun Park", "won", "Baekun"),
)
_QUESTIONS = {  # relation: (place in a country, wordings; the last is held back from training)
    "capital": (
        1,
        ("What is the capital of {}?", "Which city is the capital of {}?", "From which city is {} governed?"),
    ),
    "president": (2, ("Who is the president of {}?", "Who leads {}?", "Name the head of state of {}.")),
    "currency": (3, ("What is the currency of {}?", "What do people pay with in {}?", "Which money is used in {}?")),
    "peak": (4, ("What is the highest point of {}?", "Which mountain of {} is highest?", "Where is {} highest?")),
}
_DEV_COUNTRIES = 4


def documents() -> list[dict[str, str]]:
    """One document a country, as rows of a jsonl corpus."""
    text = (
        "{0} is a country of this small corpus. It has farms, rivers and a long history of trade with its neighbours. "
        "The capital of {0} is {1}, the largest of its cities, where ministries and courts have their seats. "
        "The president is {2}, who was elected for five years and commands the army of the republic. "
        "The currency is the {3}, and its coins show birds. "
        "The highest point is {4}, which can be climbed in two days by those who start early."
    )
    return [{"id": f"c{n:02d}", "title": row[0], "text": text.format(*row)} for n, row in enumerate(_COUNTRIES)]


def questions(split: str) -> list[dict[str, Any]]:
    """Rows of a question file: ``train``, ``dev`` (unseen countries) or ``dev_wording`` (unseen wordings too)."""
    countries = _COUNTRIES[_DEV_COUNTRIES:] if split == "train" else _COUNTRIES[:_DEV_COUNTRIES]
    rows = []
    for number, country in enumerate(countries):
        for relation, (place, wordings) in _QUESTIONS.items():
            wording = wordings[-1] if split == "dev_wording" else wordings[number % (len(wordings) - 1)]
            identity, text = f"{country[0]}-{relation}", wording.format(country[0])
            answers = [country[place]]
            rows.append(
                {"id": identity, "question": text, "answers": answers, "title": country[0], "relation": relation}
            )
    return rows


def write_demo(folder: Path) -> dict[str, int]:
    """Write ``documents.jsonl`` and ``questions/*.jsonl``; returns the rows of each file."""
    (folder / "questions").mkdir(parents=True, exist_ok=True)
    files: dict[str, list[dict[str, Any]]] = {"documents.jsonl": list(documents())}
    files |= {f"questions/{split}.jsonl": questions(split) for split in ("train", "dev", "dev_wording")}
    for name, rows in files.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {name: len(rows) for name, rows in files.items()}


def encoder(cache: Path) -> Path:
    """A random two-layer BERT with a WordPiece tokenizer, as a Hugging Face folder in the cache."""
    return _cached(cache / f"{VERSION}-encoder", save_encoder)


def generator(cache: Path) -> Path:
    """A random three-layer Llama with a byte-level BPE tokenizer, as a Hugging Face folder in the cache."""
    return _cached(cache / f"{VERSION}-generator", save_generator)


def save_encoder(folder: Path, texts: Iterable[str] | None = None) -> None:
    """Make and save the encoder; its tokenizer knows the words of ``texts``, or of the demo."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words = sorted({word for text in texts or _texts() for word, _ in pre_tokenizer.pre_tokenize_str(text)})
    letters = sorted(set("".join(words)))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), *words])
    tokens = {token: number for number, token in enumerate(vocabulary)}  # a trainer would number ties by chance
    core = Tokenizer(models.WordPiece(tokens, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizer
    core.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_generator(folder: Path, texts: Iterable[str] | None = None) -> None:
    """Make and save the generator; its tokenizer learns from ``texts``, or from the demo's."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer(texts or _texts(), [END], eos_token=END)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[tokenizer.eos_token_id] *= 2  # so that answers end
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def byte_tokenizer(texts: Iterable[str], special: Sequence[str], frame: str | None = None, **names: str) -> Any:
    """A byte-level BPE tokenizer of 400 tokens that learns from the texts.

    ``frame`` is what it puts around a text, such as ``"<s> $A </s>"``; ``names`` says what the special tokens are for.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(texts, trainer)
    if frame is not None:
        used = [(token, core.token_to_id(token)) for token in special if token in frame]
        core.post_processor = processors.TemplateProcessing(frame, special_tokens=used)
    return PreTrainedTokenizerFast(tokenizer_object=core, **names)


def _cached(folder: Path, save: Callable[[Path], None]) -> Path:
    if not folder.exists():
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
        with quiet_transformers():
            save(temporary)
        try:
            temporary.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(temporary)
    return folder


def _texts() -> Iterator[str]:
    rows: list[Mapping[str, Any]] = [*documents(), *questions("train")]
    for row in rows:
        yield from (str(value) for value in row.values())
