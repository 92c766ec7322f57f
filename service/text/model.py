"""What the service knows of a model's text: tokenizer, chat template and which tokens end an answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from service.text.decoding import IncrementalDecoder
from service.text.errors import TemplateError, UnencodableText
from service.text.template import ChatTemplate
from service.text.vocabulary import TokenTable


@dataclasses.dataclass(frozen=True)
class TextModel:
    """One model's tokenizer and template.

    Special tokens written out in a prompt or message ("<|im_end|>") are encoded as those tokens, as vLLM and the
    transformers chat pipeline do: the rendered template is one text. Whoever puts untrusted text into a message
    must remove them first. In outputs special tokens never appear.

    `stop_token_ids` end an answer and are not part of it. `bos_token_id` is put before plain prompts when
    `add_bos` is set; chats carry what their template writes.
    """

    name: str
    tokenizer: Tokenizer
    table: TokenTable
    template: ChatTemplate | None
    stop_token_ids: tuple[int, ...]
    bos_token_id: int | None
    add_bos: bool
    vocab_size: int

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

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt text of a chat; raises TemplateError when the model has no template or refuses the messages."""
        if self.template is None:
            raise TemplateError(f"the model {self.name} has no chat template; use /v1/completions")
        return self.template.render(messages)
