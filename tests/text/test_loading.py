"""Tokenizers from files: ids against transformers, and files that are not what they should be."""

from __future__ import annotations

import json
import pathlib

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from service.model_source import ModelSource
from service.text import TextModel, TextModelError, UnencodableText, load_text_model
from service.text.gguf_metadata import read_gguf_metadata

SENTENCES = [
    "Hello, world!",
    "  two  spaces\n\n\ttabs and 12345 digits, 3.14",
    "naïve café — “quotes” 😀👩‍👩‍👧 日本語 עברית",
    "don't you're I'LL we've",
    "<|im_start|>user\nHi<|im_end|>\n",
    "def f(x):\n    return x**2  # done",
    "\x00 NUL and \u200b zero width",
    "",
    " ",
]


@pytest.fixture(scope="session")
def transformers_tokenizer(gguf_path: pathlib.Path):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(gguf_path.parent), gguf_file=gguf_path.name)


@pytest.mark.parametrize("text", SENTENCES)
def test_smollm_ids_equal_those_of_transformers(text, smollm: TextModel, transformers_tokenizer):
    ids = smollm.encode(text, add_special_tokens=False)
    assert ids == transformers_tokenizer.encode(text, add_special_tokens=False)


# transformers' GGUF conversion leaves out the rule that splits digits one by one, which the model's own
# tokenizer.json has; it shows only where a space stands before a digit outside ASCII.
texts = st.text(st.characters(exclude_categories=["Cs", "Nd", "Nl", "No"]) | st.sampled_from("0123456789"), max_size=60)


@given(text=texts)
@settings(max_examples=200, deadline=None)
def test_any_text_has_the_ids_and_the_decoding_of_transformers(text, smollm: TextModel, transformers_tokenizer):
    ids = smollm.encode(text, add_special_tokens=False)
    assert ids == transformers_tokenizer.encode(text, add_special_tokens=False)
    decoded = transformers_tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert smollm.decode(ids) == decoded


def test_digits_are_split_one_by_one_in_every_script(smollm: TextModel):
    assert smollm.tokenizer.encode(" ²").tokens == ["Ġ", "Â²"]


def test_known_ids_of_smollm(smollm: TextModel):
    assert smollm.encode("<|im_start|>user\nHi<|im_end|>\n", add_special_tokens=True) == [1, 4093, 198, 26843, 2, 198]
    assert smollm.encode("Hello 42", add_special_tokens=True) == [19556, 216, 36, 34]


def test_smollm_ends_at_its_end_of_turn_only(smollm: TextModel):
    assert smollm.stop_token_ids == (2,)
    assert (smollm.vocab_size, smollm.bos_token_id, smollm.add_bos) == (49_152, 1, False)


def test_the_metadata_reader_agrees_with_the_gguf_package(gguf_path):
    ours, theirs = read_gguf_metadata(gguf_path), gguf.GGUFReader(gguf_path).fields
    names = [name for name in theirs if not name.startswith("GGUF.")]
    assert sorted(ours) == sorted(names)
    for name in names:
        assert ours[name] == theirs[name].contents(), name


@pytest.mark.parametrize("keep", [3, 12, 30, 1000, 100_000])
def test_a_cut_off_file_is_refused(keep, gguf_path, tmp_path):
    cut = tmp_path / "cut.gguf"
    with gguf_path.open("rb") as file:
        cut.write_bytes(file.read(keep))
    with pytest.raises(TextModelError, match=r"cut off|not a GGUF"):
        read_gguf_metadata(cut)


def test_lone_surrogates_have_no_ids(smollm: TextModel):
    with pytest.raises(UnencodableText, match="surrogate"):
        smollm.encode("a\ud800b", add_special_tokens=False)


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path, byte_tokenizer: Tokenizer) -> pathlib.Path:
    byte_tokenizer.save(str(tmp_path / "tokenizer.json"))
    end = byte_tokenizer.token_to_id("<end>")
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, 9]}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": {"content": "<end>"}, "add_bos_token": True, "chat_template": "{{ bos_token }}X"})
    )
    return tmp_path


def source_of(path: pathlib.Path) -> ModelSource:
    return ModelSource(name="tiny", path=path, kind="huggingface")


def test_a_directory_gives_its_template_and_ends(checkpoint, byte_tokenizer):
    model = load_text_model(source_of(checkpoint))
    end = byte_tokenizer.token_to_id("<end>")
    assert model.stop_token_ids == (end, 9)
    assert model.render_chat([]) == "<end>X"
    assert model.encode("a", add_special_tokens=True)[0] == end
    assert len(model.encode("a", add_special_tokens=False)) == 1


def test_a_template_file_wins_over_the_one_in_the_configuration(checkpoint):
    (checkpoint / "chat_template.jinja").write_text("from the file")
    assert load_text_model(source_of(checkpoint)).render_chat([]) == "from the file"


def test_without_a_template_chat_is_refused_with_the_way_out(checkpoint):
    (checkpoint / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match="/v1/completions"):
        load_text_model(source_of(checkpoint)).render_chat([])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", "{", "cannot be read"),
        ("config.json", "[1]", "must hold a JSON object"),
        ("generation_config.json", '{"eos_token_id": 99999}', "outside its vocabulary"),
    ],
)
def test_damaged_files_are_named(file, content, message, checkpoint):
    (checkpoint / file).write_text(content)
    with pytest.raises(TextModelError, match=message):
        load_text_model(source_of(checkpoint))


def test_a_directory_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(TextModelError, match=r"no tokenizer\.json"):
        load_text_model(source_of(tmp_path))
