"""What sampling knows of each request slot: its parameters, and token counts where a penalty needs them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from gpu.device import InvalidRequest, SamplingParameters

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


class TokenCounts:
    """How often each token occurs in one request, of a vocabulary of `vocab` tokens.

    `distinct` lists the tokens that occur, so that a penalty touches those alone.
    """

    def __init__(self, vocab: int, prompt_ids: Sequence[int] | Int64, output_ids: Iterable[int]) -> None:
        prompt = np.unique(np.asarray(prompt_ids, dtype=np.int64))
        self._output = np.zeros(vocab, dtype=np.int32)
        self._occurrences = np.zeros(vocab, dtype=np.int32)
        self._occurrences[prompt] = 1
        self._distinct = np.empty(vocab, dtype=np.int64)
        self._distinct[: len(prompt)] = prompt
        self._length = len(prompt)
        self.add(output_ids)

    @property
    def distinct(self) -> Int64:
        """Ids of the tokens that occur in prompt or output."""
        return self._distinct[: self._length]

    def output_counts(self, token_ids: Int64) -> Int32:
        """How often each of these occurs in the output."""
        return self._output[token_ids]

    def add(self, tokens: Iterable[int]) -> None:
        """Count output tokens."""
        for token in tokens:
            if self._occurrences[token] == 0:
                self._distinct[self._length] = token
                self._length += 1
            self._occurrences[token] += 1
            self._output[token] += 1

    def take_back(self, tokens: Sequence[int]) -> None:
        """Undo the latest add() of just these tokens."""
        for token in reversed(tokens):
            self._output[token] -= 1
            self._occurrences[token] -= 1
            if self._occurrences[token] == 0:
                self._length -= 1


@dataclasses.dataclass(frozen=True, slots=True)
class SlotSampling:
    """One open request. `counts` is None where no penalty is asked; `bias_ids` [n] and `bias_values` [n] may be empty.

    `by_equality`: each draft is compared with the token that plain decoding takes in its place.
    """

    vocab: int
    parameters: SamplingParameters
    counts: TokenCounts | None
    bias_ids: Int64
    bias_values: Float32
    greedy: bool
    by_equality: bool
    adjusts: bool

    @property
    def takes_likeliest(self) -> bool:
        """Each of its tokens is the likeliest of the raw logits, and that is all it asks."""
        return self.greedy and not self.adjusts and self.parameters.logprobs is None

    def adjusted(self, row: Float32) -> Float32:
        """A copy of raw logits [vocab] with penalties and bias; the row itself where there are none."""
        if not self.adjusts:
            return row
        row = row.copy()
        if self.counts is not None:
            self._apply_penalties(row, self.counts)
        row[self.bias_ids] += self.bias_values
        return row

    def _apply_penalties(self, row: Float32, counts: TokenCounts) -> None:
        token_ids = counts.distinct
        occurrences = counts.output_counts(token_ids).astype(np.float32)
        repetition = np.float32(self.parameters.repetition_penalty)
        values = row[token_ids]
        values = np.where(values > 0, values / repetition, values * repetition)
        values -= np.float32(self.parameters.frequency_penalty) * occurrences
        values -= np.float32(self.parameters.presence_penalty) * (occurrences > 0)
        row[token_ids] = values


class SamplingTable:
    """The requests of `slots` slots over a vocabulary of `vocab` tokens. One thread at a time may use it."""

    def __init__(self, slots: int, vocab: int) -> None:
        self.vocab = vocab
        self._slots: list[SlotSampling | None] = [None] * slots

    def open(
        self,
        slot: int,
        parameters: SamplingParameters,
        prompt_ids: Sequence[int] | Int64,
        output_ids: Sequence[int] = (),
    ) -> None:
        """Describe a slot anew; `output_ids`: tokens that the request emitted before, in an earlier life.

        Raises InvalidRequest where the logit bias names an unknown token or is not a number below infinity.
        """
        bias = bias_by_token(parameters, self.vocab)
        penalised = needs_counts(parameters)
        greedy = parameters.temperature == 0.0
        self._slots[slot] = SlotSampling(
            vocab=self.vocab,
            parameters=parameters,
            counts=TokenCounts(self.vocab, prompt_ids, output_ids) if penalised else None,
            bias_ids=np.array(list(bias), dtype=np.int64),
            bias_values=np.array(list(bias.values()), dtype=np.float32),
            greedy=greedy,
            by_equality=greedy or parameters.reproducible,
            adjusts=penalised or bool(bias),
        )

    def close(self, slot: int) -> None:
        """Forget a slot. Idempotent."""
        self._slots[slot] = None

    def record(self, slot: int, tokens: Iterable[int]) -> None:
        """Count tokens that the slot's request has emitted. Nothing happens where nobody asks for counts."""
        counts = self.of(slot).counts
        if counts is not None:
            counts.add(tokens)

    def of(self, slot: int) -> SlotSampling:
        """The open request in this slot; KeyError where there is none."""
        found = self._slots[slot]
        if found is None:
            raise KeyError(f"slot {slot} holds no open request")
        return found


def needs_counts(parameters: SamplingParameters) -> bool:
    """Whether a penalty is asked for."""
    return (
        parameters.repetition_penalty != 1.0
        or parameters.presence_penalty != 0.0
        or parameters.frequency_penalty != 0.0
    )


def bias_by_token(parameters: SamplingParameters, vocab: int) -> dict[int, float]:
    """The addend of each token that the logit bias names; those of a repeated token add up.

    Raises InvalidRequest where the token is unknown or the addend is NaN or +inf.
    """
    bias: dict[int, float] = {}
    for token, addend in parameters.logit_bias:
        if not 0 <= token < vocab:
            raise InvalidRequest(f"logit_bias names token {token}; ids go from 0 to {vocab - 1}")
        if math.isnan(addend) or addend == math.inf:
            raise InvalidRequest(f"logit_bias of token {token} is {addend}; it must be a finite number")
        bias[token] = bias.get(token, 0.0) + addend
    return bias
