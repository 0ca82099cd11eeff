"""The texts that a generator reads and writes, as token ids."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ragray.config import GeneratorConfig
from ragray.generators.prompt import Cuts, PromptTokenizer
from ragray.records import InputError, Passage

WAYS = ["apart", "apart_with_start", "joint", "joint_with_end"]
LONG = Passage("1", "Peru", "The capital is Lima. " * 100)


@pytest.fixture(scope="session")
def tokenizers(byte_tokenizer):
    """Like those of Llama without and with a start token, of BART and of T5."""
    start, end, pad = {"bos_token": "<s>"}, {"eos_token": "</s>"}, {"pad_token": "<pad>"}
    return {
        "apart": byte_tokenizer(["</s>"], **end),
        "apart_with_start": byte_tokenizer(["<s>", "</s>"], "<s> $A", **start, **end),
        "joint": byte_tokenizer(["<s>", "<pad>", "</s>"], "<s> $A </s>", **start, **end, **pad),
        "joint_with_end": byte_tokenizer(["<pad>", "</s>"], "$A </s>", **end, **pad),
    }


@pytest.fixture(scope="session")
def make(tokenizers):
    """(way, settings) -> a prompt."""

    def make_one(way, question_tokenizer=None, **settings):
        config = GeneratorConfig(model="tiny", **settings)
        return PromptTokenizer(tokenizers[way], config, way.startswith("joint"), question_tokenizer)

    return make_one


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


def ids_of(row):
    return (*row.passage, *row.question)


def text_of(prompt, row):
    return prompt.tokenizer.decode(ids_of(row), skip_special_tokens=True)


# what a prompt is


def test_a_prompt_is_the_passage_then_the_question(make, way, passages, questions):
    prompt = make(way)
    rows = prompt.rows(questions[:2], [passages[:2], passages[2:4]])
    pairs = [(questions[0], passages[0]), (questions[0], passages[1]), (questions[1], passages[2])]
    for row, (question, passage) in zip(rows, pairs, strict=False):
        expected = f"Title: {passage.title}\n{passage.text}\nQuestion: {question}\nAnswer:"
        assert text_of(prompt, row) == expected
    assert len(rows) == 4


def test_a_closed_book_prompt_is_the_question_alone(make, way, questions):
    prompt = make(way)
    rows = prompt.rows(questions, None)
    assert [text_of(prompt, row) for row in rows] == [f"Question: {question}\nAnswer:" for question in questions]


def test_a_joint_prompt_is_one_text_to_the_tokenizer(make, tokenizers, passages):
    for way in ("joint", "joint_with_end"):
        (row,) = make(way, passage_template="{text}", question_template="er {question}").rows(
            ["Oslo?"], [[passages[0]]]
        )
        assert row.passage == ()
        assert list(row.question) == tokenizers[way](passages[0].text + "er Oslo?").input_ids


def test_parts_that_are_tokenised_apart_dont_depend_on_each_other(make, passages):
    rows = make("apart").rows(["Oslo?", "Which?"], [passages[:2], passages[:2]])
    assert rows[0].passage == rows[2].passage != rows[1].passage == rows[3].passage
    assert rows[0].question == rows[1].question != rows[2].question


@pytest.mark.parametrize("closed_book", [False, True])
def test_a_start_token_is_there_exactly_once(make, tokenizers, passages, closed_book):
    start = tokenizers["apart_with_start"].bos_token_id
    prompt = make("apart_with_start", max_passage_tokens=10)
    for row in prompt.rows(["Oslo?", "Which?"], None if closed_book else [passages[:3]] * 2):
        assert ids_of(row)[0] == start
        assert ids_of(row).count(start) == 1
    assert start not in prompt.targets(["Lima"])[0]


# limits


@pytest.mark.parametrize("limit", ["max_passage_tokens", "max_prompt_tokens"])
def test_a_passage_that_just_fits_is_whole_and_loses_a_token_below(make, way, passages, limit):
    prompt = make(way)
    question = "Oslo?"
    (whole,) = prompt.rows([question], [[passages[0]]])
    passage_tokens = len(prompt.tokenizer(f"Title: Norway\n{passages[0].text}\n", add_special_tokens=False).input_ids)
    fits = len(ids_of(whole)) if limit == "max_prompt_tokens" else passage_tokens
    exact = make(way, **{limit: fits})
    assert exact.rows([question], [[passages[0]]]) == [whole]
    assert (exact.cuts.passages, exact.cuts.passages_seen) == (0, 1)
    below = make(way, **{limit: fits - 1})
    (row,) = below.rows([question], [[passages[0]]])
    assert len(ids_of(row)) == len(ids_of(whole)) - 1
    assert text_of(below, row).endswith("sea.Question: Oslo?\nAnswer:")
    assert below.cuts.passages == 1


@pytest.mark.parametrize("options", [{}, {"max_prompt_tokens": 50}, {"max_passage_tokens": 3}])
def test_no_passage_however_long_pushes_the_question_out(make, way, questions, options):
    prompt = make(way, **options)
    for row, question in zip(prompt.rows(questions, [[LONG]] * 3), questions, strict=True):
        text = text_of(prompt, row)
        assert text.startswith("Title: Peru"[:6])
        assert text.endswith(f"Question: {question}\nAnswer:")
        assert len(ids_of(row)) <= options.get("max_prompt_tokens", 1000)
        if "max_prompt_tokens" in options:
            assert len(ids_of(row)) == 50


def test_a_prompt_without_room_for_a_passage_is_refused_with_numbers(make, way, tokenizers):
    question = "Which mountain is the highest point of Kenya, please?"
    prompt = make(way)
    (alone,) = prompt.rows([question], None)
    needed = len(ids_of(alone))
    (row,) = make(way, max_prompt_tokens=needed + 1).rows([question], [[LONG]])
    assert len(ids_of(row)) == needed + 1
    with pytest.raises(InputError, match=rf"question of \d+ tokens leaves no room .*max_prompt_tokens={needed}"):
        make(way, max_prompt_tokens=needed).rows([question], [[LONG]])


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80) | st.text("aé漢🎈 \n", max_size=80)
lenient = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@lenient
@given(text=texts, question=texts, limit=st.integers(8, 40))
@example(text="a  ", question="x", limit=9)
def test_no_prompt_is_over_its_limit_and_every_question_is_there(make, way, text, question, limit):
    prompt = make(
        way, passage_template="{text} ", question_template=" {question}", max_prompt_tokens=limit, max_question_tokens=5
    )
    (alone,) = prompt.rows([question], None)
    (row,) = prompt.rows([question], [[Passage("1", "", text)]])
    assert len(ids_of(row)) <= limit
    assert text_of(prompt, row).endswith(text_of(prompt, alone))


def test_where_one_text_is_more_tokens_than_its_two_parts_the_limit_holds_too():
    vocabulary = ["</s>", *"abcx", "bc", "xb", "ca"]
    merges = [("b", "c"), ("x", "b"), ("c", "a")]  # "xb" and "ca", but "x", "bc" and "a"
    core = Tokenizer(models.BPE({token: at for at, token in enumerate(vocabulary)}, merges))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")
    templates = {"passage_template": "{text}", "question_template": "{question}"}
    for limit, tokens in ((2, ["xb", "ca"]), (None, ["x", "bc", "a"])):
        config = GeneratorConfig(model="tiny", max_prompt_tokens=limit, **templates)
        (row,) = PromptTokenizer(tokenizer, config, joint=True).rows(["ca"], [[Passage("1", "", "xb")]])
        assert tokenizer.convert_ids_to_tokens(row.question) == tokens


@lenient
@given(question=texts, repeat=st.integers(1, 30))
def test_a_long_question_is_cut_but_keeps_its_start_and_the_cue_to_answer(make, way, question, repeat):
    prompt = make(way, max_question_tokens=40)
    question = "Where" + question.replace("<", "").replace("[", "") * repeat
    (row,) = prompt.rows([question], None)
    text = text_of(prompt, row)
    assert text.startswith("Question: Where")
    assert text.endswith("\nAnswer:")
    start, end = prompt._special
    assert len(ids_of(row)) <= 40 + len(start) + len(end)
    if text != f"Question: {question}\nAnswer:":
        assert (prompt.cuts.questions, prompt.cuts.questions_seen) == (1, 1)
        kept = text.removeprefix("Question: ").removesuffix("\nAnswer:")
        assert question.startswith(kept)  # no half of a character that was cut in two


def test_what_is_cut_is_counted_once_a_call_and_distinct_text(make, way, passages):
    prompt = make(way, max_passage_tokens=20, max_question_tokens=12, max_answer_tokens=4)
    questions = ["Oslo?", "Which mountain is the highest point of Kenya, please?", "Oslo?"]
    long = passages[0]
    prompt.rows(questions, [[long, passages[4]]] * 3)
    prompt.targets(["a", "a b c d e f g h", "a b c d e f g h"])
    assert prompt.cuts == Cuts(passages=1, passages_seen=2, questions=1, questions_seen=2, answers=2, answers_seen=3)
    prompt.rows(questions[:1], [[long]])
    assert (prompt.cuts.passages, prompt.cuts.passages_seen, prompt.cuts.questions_seen) == (2, 3, 3)


# answers


def test_answers_end_with_the_end_token_unless_they_are_cut(make, way):
    prompt = make(way, max_answer_tokens=5)
    short, long = prompt.targets(["a", "a b c d e f g"])
    assert short[-1] == prompt.end_id
    assert len(long) == 5
    assert prompt.end_id not in long


def test_answers_dont_end_with_the_end_token_where_they_are_labels(make, way):
    (ids,) = make(way, end_answers=False, answer_template="{answer}").targets(["a"])
    start = (0,) if way == "joint" else ()
    assert ids[: len(start)] == start
    assert len(ids) == len(start) + 1


@pytest.mark.parametrize(("decoder_start", "starts"), [(None, [0]), (2, [0]), (0, [])])
def test_an_answer_has_the_tokenizers_start_token_unless_decoding_starts_from_it(make, decoder_start, starts):
    prompt = make("joint", decoder_start=decoder_start)
    (ids,) = prompt.targets(["Lima"])
    assert [token for token in ids if token == 0] == starts
    assert prompt.tokenizer.decode(ids, skip_special_tokens=True) == " Lima"


def test_an_answer_is_read_back_up_to_its_first_line(make, way):
    prompt = make(way, max_answer_tokens=24)
    texts = ["é sol", "\n Lima \nOslo", "", "漢 a"]
    assert [prompt.text(ids) for ids in prompt.targets(texts)] == ["é sol", "Lima", "", "漢 a"]
    assert prompt.text([]) == ""


# tokens that end an answer


def test_an_answer_ends_at_the_end_token_and_at_a_line_break_of_one_token(make, way):
    prompt = make(way)
    line = prompt.tokenizer("\n", add_special_tokens=False).input_ids
    assert len(line) == 1
    assert len(prompt.tokenizer("\n\n", add_special_tokens=False).input_ids) == 2
    assert prompt.stop_ids == (prompt.end_id, *line)


def test_other_texts_of_one_token_end_an_answer_too(make, way):
    prompt = make(way, stop=(".", "?"))
    assert [prompt.tokenizer.decode([token]) for token in prompt.stop_ids[1:]] == [".", "?"]
    assert make(way, stop=()).stop_ids == (prompt.end_id,)


@pytest.mark.parametrize("text", ["###", "\n#", "Answer: xyz"])
def test_a_stop_text_of_more_tokens_is_refused_by_name(make, way, text):
    with pytest.raises(InputError, match=r"generator.stop has .* tokens to this generator: it must be one") as refused:
        _ = make(way, stop=("\n", text)).stop_ids
    assert repr(text) in str(refused.value)


def test_a_tokenizer_without_an_end_token_is_refused(byte_tokenizer):
    prompt = PromptTokenizer(byte_tokenizer(["<s>"]), GeneratorConfig(model="some model"))
    with pytest.raises(InputError, match="the tokenizer of some model has no end token"):
        _ = prompt.end_id


def test_rows_are_filled_up_with_the_end_token_where_there_is_none_for_it(make):
    assert make("apart").pad_id == make("apart").end_id
    assert make("joint").pad_id == 1


# the rules of transformers' RAG


@pytest.mark.parametrize(
    ("title", "expected"),
    [('"Peru"', "Peru"), ('""Peru""', '"Peru"'), ('"Peru', "Peru"), ('Pe"ru', 'Pe"ru'), ('"', "")],
)
def test_under_hf_rag_a_title_loses_one_pair_of_quotes(make, way, title, expected):
    passages_BK = [[Passage("1", title, "a")]]
    settings = {"passage_template": "{title} / {text}", "question_template": " // {question}"}
    prompt = make(way, text_rules="hf_rag", **settings)
    assert text_of(prompt, prompt.rows(["q"], passages_BK)[0]) == f"{expected} / a // q"
    prompt = make(way, **settings)
    assert text_of(prompt, prompt.rows(["q"], passages_BK)[0]) == f"{title} / a // q"


def test_under_hf_rag_double_spaces_become_single_across_the_seam_too(make):
    settings = {"passage_template": "{title} / {text}", "question_template": " // {question}", "text_rules": "hf_rag"}
    prompt = make("joint", **settings)
    (row,) = prompt.rows(["a  b"], [[Passage("1", "T ", "one  two   three ")]])
    assert text_of(prompt, row) == "T / one two  three // a b"
    (row,) = make("joint", **{**settings, "text_rules": "plain"}).rows(["a  b"], [[Passage("1", "T ", "one  two ")]])
    assert text_of(prompt, row) == "T  / one  two  // a  b"


# the question encoder's tokenizer


@pytest.fixture(scope="session")
def lower_case():
    """Words in lower case, as BERT's; it writes texts back with single spaces."""
    words = ["[UNK]", "[CLS]", "which", "mountain", "?"]
    core = Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", cls_token="[CLS]")


def test_a_question_is_what_the_question_tokenizer_writes_back_also_after_saving(make, lower_case, tmp_path):
    prompt = make("joint", question_tokenizer=lower_case, question_template=" // {question}")
    (row,) = prompt.rows(["Which  MOUNTAIN ?"], None)
    assert text_of(prompt, row) == " // which mountain?"
    prompt.save(tmp_path)
    again = PromptTokenizer.load(tmp_path, GeneratorConfig(model="other"), joint=True)
    assert again.question_tokenizer is not None
    assert again.rows(["Which  MOUNTAIN ?"], None) == [row]


# saving


def test_a_saved_prompt_wins_over_other_settings_except_the_models_name(make, way, tmp_path, passages, questions):
    prompt = make(way, question_template="Q: {question} A:", max_passage_tokens=10, stop=(".",), decoder_start=2)
    prompt.save(tmp_path)
    other = GeneratorConfig(model="elsewhere", max_passage_tokens=99, answer_template="{answer}")
    again = PromptTokenizer.load(tmp_path, other, way.startswith("joint"))
    assert again.config == prompt.config.model_copy(update={"model": "elsewhere"})
    assert again.question_tokenizer is None
    assert again.rows(questions, [passages[:3]] * 3) == prompt.rows(questions, [passages[:3]] * 3)
    assert again.targets(["Lima"]) == prompt.targets(["Lima"])
    assert again.stop_ids == prompt.stop_ids
    assert "model" not in json.loads((tmp_path / "ragray_generator.json").read_text())


def test_a_folder_without_a_tokenizer_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=f"no tokenizer at {tmp_path}"):
        PromptTokenizer.load(tmp_path, GeneratorConfig(model="tiny"), joint=False)
