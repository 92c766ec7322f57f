"""The prompt in front of the answer, whole at once or, with its log-probabilities, as far as it is scored."""

from __future__ import annotations

from collections.abc import Sequence

from service.api.pieces import Piece, ScoredToken, scored
from service.ipc.messages import TokenScore


class PromptEcho:
    """One choice's echo of a prompt's `text`."""

    def __init__(self, text: str, token_ids: Sequence[int], starts: Sequence[int], *, scored: bool) -> None:
        """`starts`: of each token the character of `text` where it begins.

        `scored`: tokens come with the scores that follow() is given; without it all text comes at once.
        """
        self.text = text
        self._token_ids = token_ids
        self._starts = starts
        self._scored = scored
        self._told = 0

    def follow(self, scores: Sequence[TokenScore]) -> Piece:
        """The next tokens of the prompt, whose `scores` arrived; the first token, which has none, comes before them."""
        if not self._scored:
            text, self._told = ("" if self._told else self.text), len(self._token_ids)
            return Piece(text)
        first = self._told
        tokens: list[ScoredToken] = []
        if first == 0:
            tokens.append(ScoredToken(self._token_ids[0], self._starts[0], None, ()))
        room = len(self._token_ids) - first - len(tokens)
        at = first + len(tokens)
        tokens += [scored(score, self._starts[at + i]) for i, score in enumerate(scores[:room])]
        self._told += len(tokens)
        return Piece(self.text[self._place(first) : self._place(self._told)], tuple(tokens))

    def _place(self, token: int) -> int:
        """The character where this token begins; behind the last token the end of the text."""
        return self._starts[token] if token < len(self._starts) else len(self.text)
