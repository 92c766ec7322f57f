"""What the service knows of a model's text: tokenizer, chat template and which tokens end an answer."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from service.text.decoding import IncrementalDecoder
from service.text.errors import TemplateError, UnencodableText
from service.text.template import ChatTemplate
from service.text.vocabulary import TokenTable

_LOSSLESS_SPLITS = frozenset({"ByteLevel", "Digits", "Split", "Punctuation"})


@dataclasses.dataclass(frozen=True)
class TextModel:
    """One model's tokenizer and template.

    Special tokens written out in a prompt or message ("<|im_end|>") are encoded as those tokens, as vLLM and the
    transformers chat pipeline do: the rendered template is one text. Whoever puts untrusted text into a message
    must remove them first. In outputs special tokens never appear.

    `stop_token_ids` end an answer and are not part of it. `bos_token_id` is put before plain prompts when
    `add_bos` is set; chats carry what their template writes. `created`: Unix time at which its files were written.
    """

    name: str
    tokenizer: Tokenizer
    table: TokenTable
    template: ChatTemplate | None
    stop_token_ids: tuple[int, ...]
    bos_token_id: int | None
    add_bos: bool
    vocab_size: int
    created: int = 0

    def least_tokens(self, text: str) -> int:
        """A number of tokens that `text` has at least, from its UTF-8 length alone: about 1 ms for a megabyte.

        0, which says nothing, for tokenizers that may shorten a text before they cut it.
        """
        if self._longest_token is None:
            return 0
        longest, dropped = self._longest_token
        return -(-len(text.encode("utf-8", "surrogatepass").translate(None, dropped)) // longest)

    @functools.cached_property
    def _longest_token(self) -> tuple[int, bytes] | None:
        """Bytes of the longest token, and the bytes that the vocabulary lacks: the tokenizer drops them silently."""
        state = json.loads(self.tokenizer.to_str())
        added = self.tokenizer.get_added_tokens_decoder().values()
        if (
            self.table.strip_first_space
            or state["normalizer"] is not None
            or not _keeps_every_byte(state["pre_tokenizer"])
            or any(token.lstrip or token.rstrip for token in added)
        ):
            return None
        known = [self.table.bytes_of(index) for index in range(len(self.table))]
        longest = max(map(len, [*known, *(token.content.encode("utf-8") for token in added)]))
        single = {token for token in known if len(token) == 1}
        return longest, bytes(byte for byte in range(256) if bytes([byte]) not in single)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`. The interpreter lock is free meanwhile, so a thread may do it.

        `add_special_tokens` puts the model's begin token first where the model expects one and the text has none.
        Raises UnencodableText for lone surrogates.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UnencodableText(f"character {error.start} is half of a surrogate pair; send valid Unicode") from error
        ids: list[int] = self.tokenizer.encode_batch([text], add_special_tokens=False)[0].ids
        if add_special_tokens and self.add_bos and self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            return [self.bos_token_id, *ids]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of an answer, without special tokens; malformed UTF-8 becomes U+FFFD."""
        decoder = self.decoder()
        return decoder.feed(token_ids) + decoder.finish()

    def decoder(self) -> IncrementalDecoder:
        """A fresh decoder for one answer."""
        return IncrementalDecoder(self.table)

    def decode_prompt(self, token_ids: Sequence[int]) -> tuple[str, list[int]]:
        """The text that a prompt's tokens stand for, and of each token the character where it begins.

        Special tokens appear as they are written in prompts, but for the begin token where the model adds it itself.
        """
        decoder = IncrementalDecoder(self.table, written=True)
        added = int(self.add_bos and self.bos_token_id is not None and token_ids[:1] == [self.bos_token_id])
        text, starts = decoder.feed_aligned(token_ids[added:])
        return text + decoder.finish(), [0] * added + starts

    def token_text(self, token_id: int) -> str | bytes | None:
        """One token alone: its text, its bytes where these are not whole UTF-8, None outside the vocabulary.

        Special tokens are given as they are written in prompts.
        """
        if not 0 <= token_id < len(self.table):
            return None
        data = self.table.written_bytes_of(token_id)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return data

    def message_boundaries(self, token_ids: Sequence[int]) -> list[int]:
        """Prompt endpoints at which later prompts may part from this one, ascending: behind tokens that end a turn.

        A newline token that follows it, as templates write one, belongs to the message. The last endpoint is that of
        the whole prompt where the template begins an answer as it writes one in a history: to cut before the few
        tokens that begin an answer would cost a program of their own and help no later prompt.
        """
        ends = frozenset(self.stop_token_ids)
        last = len(token_ids) - 1
        boundaries = [
            at + 2 if at < last and self.table.bytes_of(token_ids[at + 1]) == b"\n" else at + 1
            for at, token_id in enumerate(token_ids)
            if token_id in ends
        ]
        if boundaries and self._histories_repeat_prompts:
            boundaries[-1] = len(token_ids)
        return boundaries

    @functools.cached_property
    def _histories_repeat_prompts(self) -> bool:
        """Whether the prompt of a chat's next turn begins with that of this turn, what begins the answer included."""
        if self.template is None:
            return False
        chat = [{"role": "user", "content": "a"}]
        longer = [*chat, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
        try:
            return self.template.render(longer).startswith(self.template.render(chat))
        except TemplateError:
            return False

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt text of a chat; raises TemplateError when the model has no template or refuses the messages."""
        if self.template is None:
            raise TemplateError(f"the model {self.name} has no chat template; use /v1/completions")
        return self.template.render(messages)


def _keeps_every_byte(splitting: Mapping[str, Any] | None) -> bool:
    """Whether a pre-tokenizer, as the tokenizer's file describes it, only cuts a text and removes nothing."""
    if splitting is None:
        return True
    if splitting["type"] == "Sequence":
        return all(_keeps_every_byte(part) for part in splitting["pretokenizers"])
    return splitting["type"] in _LOSSLESS_SPLITS and splitting.get("behavior") != "Removed"
