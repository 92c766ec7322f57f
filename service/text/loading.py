"""Reads a model's text side from a GGUF file or a Hugging Face directory."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from service.model_source import ModelSource
from service.text.errors import TextModelError
from service.text.gguf_metadata import read_gguf_metadata
from service.text.model import TextModel
from service.text.template import ChatTemplate
from service.text.vocabulary import TokenTable

_CONTROL, _USER_DEFINED = 3, 4  # GGUF token types
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>")


def load_text_model(source: ModelSource) -> TextModel:
    """The text side of `source`; raises TextModelError naming the file and what is wrong with it."""
    path = pathlib.Path(source.path)
    made = _from_gguf(source.name, path) if source.kind == "gguf" else _from_directory(source.name, path)
    return dataclasses.replace(made, created=int(path.stat().st_mtime))


def _from_gguf(name: str, path: pathlib.Path) -> TextModel:
    metadata = read_gguf_metadata(path)
    try:
        tokens: list[str] = metadata["tokenizer.ggml.tokens"]
        merges: list[str] = metadata["tokenizer.ggml.merges"]
        kind, style = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre", "gpt-2")
    except KeyError as error:
        raise TextModelError(f"{path} has no {error.args[0]}; a GGUF file with a BPE tokenizer is needed") from error
    if kind != "gpt2":
        raise TextModelError(f"{path} has a {kind!r} tokenizer; only byte-level BPE ('gpt2') is supported in GGUF")
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[(left, right) for left, _, right in (merge.partition(" ") for merge in merges)],
        )
    )
    tokenizer.pre_tokenizer = _pre_tokenizer(str(style), path)
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type", [])
    added = [(token, kind) for token, kind in zip(tokens, types, strict=False) if kind in (_CONTROL, _USER_DEFINED)]
    tokenizer.add_tokens([AddedToken(token, special=kind == _CONTROL, normalized=False) for token, kind in added])
    bos, eos = metadata.get("tokenizer.ggml.bos_token_id"), metadata.get("tokenizer.ggml.eos_token_id")
    return _build(
        name,
        tokenizer,
        template=metadata.get("tokenizer.chat_template"),
        bos=bos,
        stops=[] if eos is None else [eos],
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        eos_text=None if eos is None else tokens[eos],
    )


def _pre_tokenizer(style: str, path: pathlib.Path) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if style == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if style in ("gpt-2", "gpt2", "default"):
        return byte_level
    raise TextModelError(
        f"{path} splits words by the rule {style!r}; 'smollm' and 'gpt-2' are supported in GGUF. "
        "Use the model's Hugging Face directory, whose tokenizer.json holds the rule itself"
    )


def _from_directory(name: str, path: pathlib.Path) -> TextModel:
    file = path / "tokenizer.json"
    if not file.is_file():
        raise TextModelError(f"{path} has no tokenizer.json; save the model's fast tokenizer there")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for every kind of damage
        raise TextModelError(f"{file} cannot be read: {error}") from error
    config = _read_json(path / "tokenizer_config.json")
    settings = {**_read_json(path / "config.json"), **_read_json(path / "generation_config.json")}
    eos = settings.get("eos_token_id")
    bos_text, eos_text = _token_text(config.get("bos_token")), _token_text(config.get("eos_token"))
    stops = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if eos_text is not None and (eos_id := tokenizer.token_to_id(eos_text)) is not None:
        stops = [*stops, eos_id]
    begin = tokenizer.encode("").ids  # what the tokenizer's own post-processor puts around an empty text
    bos = tokenizer.token_to_id(bos_text) if bos_text is not None else settings.get("bos_token_id")
    return _build(
        name,
        tokenizer,
        template=_directory_template(path, config),
        bos=bos,
        stops=stops,
        add_bos=bool(config.get("add_bos_token", bos is not None and begin[:1] == [bos])),
        eos_text=eos_text,
    )


def _directory_template(path: pathlib.Path, config: Mapping[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # named templates
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _read_json(file: pathlib.Path) -> dict[str, Any]:
    """The file's object; empty when there is no such file."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TextModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise TextModelError(f"{file} must hold a JSON object")
    return value


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _build(
    name: str,
    tokenizer: Tokenizer,
    *,
    template: str | None,
    bos: int | None,
    stops: Iterable[int],
    add_bos: bool,
    eos_text: str | None,
) -> TextModel:
    table = TokenTable(tokenizer)
    turn_ends = [tokenizer.token_to_id(text) for text in _TURN_ENDS]
    stop_ids = dict.fromkeys([*stops, *(end for end in turn_ends if end is not None)])
    bad = [i for i in [*stop_ids, *([] if bos is None else [bos])] if not 0 <= i < len(table)]
    if bad:
        raise TextModelError(f"the model's special token ids {bad} are outside its vocabulary of {len(table)}")
    special = {"bos_token": "" if bos is None else tokenizer.id_to_token(bos) or "", "eos_token": eos_text or ""}
    return TextModel(
        name=name,
        tokenizer=tokenizer,
        table=table,
        template=None if template is None else ChatTemplate(template, special),
        stop_token_ids=tuple(stop_ids),
        bos_token_id=bos,
        add_bos=add_bos,
        vocab_size=len(table),
    )
