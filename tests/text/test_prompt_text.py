"""What a prompt's tokens stand for, tokens alone, and where messages end."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.text import TextModel
from service.text.template import ChatTemplate
from service.text.vocabulary import TokenTable


@pytest.fixture(scope="module")
def byte_model(byte_tokenizer) -> TextModel:
    table = TokenTable(byte_tokenizer)
    end = byte_tokenizer.token_to_id("<end>")
    return TextModel("bytes", byte_tokenizer, table, None, (end,), end, False, len(table))


@given(text=st.lists(st.sampled_from([*"aé😀 \n", "<end>"]), max_size=12).map("".join))
@settings(max_examples=200, deadline=None)
def test_a_prompt_comes_back_as_it_was_written_with_special_tokens(text, byte_model):
    ids = byte_model.encode(text, add_special_tokens=False)
    decoded, starts = byte_model.decode_prompt(ids)
    assert decoded == text
    assert len(starts) == len(ids)
    assert starts == sorted(starts)
    for token_id, start in zip(ids, starts, strict=True):
        assert byte_model.table.written_bytes_of(token_id)[:1] in text[start].encode() or text[start] == "<"


def test_the_begin_token_that_the_model_adds_has_no_text_in_an_echo(byte_model):
    adding = dataclasses.replace(byte_model, add_bos=True)
    ids = adding.encode("Hi", add_special_tokens=True)
    assert len(ids) == 3
    assert adding.decode_prompt(ids) == ("Hi", [0, 0, 1])
    assert byte_model.decode_prompt(ids) == ("<end>Hi", [0, 5, 6])


def test_one_token_alone_is_text_or_bytes_or_unknown(byte_model, byte_tokenizer):
    (plain,) = byte_model.encode("x", add_special_tokens=False)
    first, _ = byte_model.encode("é", add_special_tokens=False)
    end = byte_tokenizer.token_to_id("<end>")
    assert [byte_model.token_text(i) for i in (plain, first, end, len(byte_model.table), -1)] == [
        "x",
        b"\xc3",
        "<end>",
        None,
        None,
    ]
    assert [byte_model.table.is_special(i) for i in (plain, end)] == [False, True]


@pytest.mark.parametrize(
    ("text", "boundaries"),
    [
        ("", []),
        ("abc", []),
        ("ab<end>", [3]),
        ("ab<end>\n", [4]),
        ("ab<end>\n\nc<end>x<end><end>\n", [4, 7, 9, 11]),
        ("\n<end>", [2]),
    ],
)
def test_messages_end_behind_the_token_that_ends_a_turn_and_its_newline(byte_model, text, boundaries):
    ids = byte_model.encode(text, add_special_tokens=False)
    assert byte_model.message_boundaries(ids) == boundaries


def test_a_longer_chat_repeats_the_prompt_of_a_shorter_one_up_to_its_boundaries(smollm: TextModel):
    chat = [{"role": "user", "content": "Hello"}]
    longer = [*chat, {"role": "assistant", "content": "Hi!"}, {"role": "user", "content": "Why?"}]
    first, second = (
        smollm.encode(smollm.render_chat(messages), add_special_tokens=False) for messages in (chat, longer)
    )
    boundaries = smollm.message_boundaries(first)
    assert len(boundaries) == 2  # the template's own system message and the user's
    assert boundaries[-1] == len(first), "with what begins the answer: the next turn repeats that too"
    assert second[: len(first)] == first
    later = smollm.message_boundaries(second)
    assert (len(later), later[0], later[-1]) == (4, boundaries[0], len(second))
    assert smollm.decode_prompt(second[: later[1]])[0].endswith("Hello<|im_end|>\n")


def test_a_template_that_drops_what_began_an_answer_keeps_the_last_messages_end(smollm: TextModel):
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    )
    thinking = dataclasses.replace(smollm, template=ChatTemplate(source, {}))
    ids = thinking.encode(thinking.render_chat([{"role": "user", "content": "Hello"}]), add_special_tokens=False)
    (end,) = thinking.message_boundaries(ids)
    assert thinking.decode_prompt(ids[:end])[0] == "<|im_start|>user\nHello<|im_end|>\n"
