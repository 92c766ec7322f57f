"""How many drafts of a round the target model accepts.

Survival S_i is the probability that drafts 1..i are all accepted. A file gives one curve per row; a round's number of
accepted drafts is drawn from it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scheduler.simulation.errors import InvalidTable, SimulationError
from scheduler.simulation.tables import Row, read_rows

POSITION_COLUMNS = tuple(f"pos{i}" for i in range(1, 9))
LARGEST_DEPTH = 63
_TABLE = 1 << 16
_SMALLEST = 1e-30
_STRIDE = 40_503  # odd, so that an answer's positions visit the whole table


@dataclasses.dataclass(frozen=True, slots=True)
class Survival:
    """One acceptance curve. `probabilities[i - 1]` is S_i; depths beyond them fall on by the last measured ratio.

    `source`: the fields of the row that it came from. `measured_depth`: how many depths the row states; 0 for a fit.
    """

    probabilities: tuple[float, ...]
    source: str
    measured_depth: int = 0

    def to_depth(self, depth: int) -> list[float]:
        """S_1 to S_depth."""
        curve = list(self.probabilities[:depth])
        ratio = curve[-1] / curve[-2] if len(curve) > 1 and curve[-2] else curve[0] if curve else 0.0
        while len(curve) < depth:
            curve.append(curve[-1] * min(1.0, ratio))
        return curve


def parse_acceptance(text: str, name: str, row_words: str = "") -> Survival:
    """The first row of an acceptance CSV that has a curve and contains every word of `row_words`, in any case.

    Read are columns pos1, pos2, ... (probability that drafts up to this position are accepted) or fit_p1 and fit_q
    (S_i = p1 * q^(i-1)). Raises InvalidTable.
    """
    words = row_words.lower().split()
    rows = list(read_rows(text, name, ()))
    if not rows[0].has("pos1") and not (rows[0].has("fit_p1") and rows[0].has("fit_q")):
        raise InvalidTable(f"{name} has neither pos1, pos2, ... nor fit_p1 and fit_q; one of both is needed")
    for row in rows:
        if all(word in row.joined.lower() for word in words):
            found = _survival(row)
            if found is not None:
                return found
    said = f" with {row_words!r}" if words else ""
    raise InvalidTable(f"{name} has no row{said} that states an acceptance curve")


def _survival(row: Row) -> Survival | None:
    if row.text("fit_p1"):
        first, ratio = row.number("fit_p1"), row.number("fit_q")
        if first > 1 or ratio > 1:
            raise row.wrong("fit_p1" if first > 1 else "fit_q", "a probability, from 0 to 1")
        return Survival(tuple(first * ratio**i for i in range(LARGEST_DEPTH)), _source(row))
    curve: list[float] = []
    for column in POSITION_COLUMNS:
        if not row.text(column):
            break
        value = row.number(column)
        if value > (curve[-1] if curve else 1.0):
            raise row.wrong(column, "a probability that does not exceed the position's before it")
        curve.append(value)
    return Survival(tuple(curve), _source(row), len(curve)) if curve else None


def _source(row: Row) -> str:
    return ", ".join(filter(None, (row.text(column) for column in ("method", "target", "draft", "dataset"))))


class AcceptanceLuck:
    """Draws accepted drafts. A draw belongs to a request and its output position, so policies meet the same luck.

    `depth`: the deepest draft that any graph proposes. `heterogeneity`: standard deviation of the logarithm of each
    request's exponent h on the curve (S_i ** h). `spread`: how much a round's own survival differs from its request's
    mean: s_i = S_i * (1 + spread * v * (1 - S_i)) with v uniform in [-1, 1]. It keeps the mean, never rises with depth,
    and is what a confidence head knows before the target verifies.
    """

    def __init__(
        self, survival: Survival, depth: int, seed: int = 0, heterogeneity: float = 0.0, spread: float = 0.0
    ) -> None:
        if not 1 <= depth <= LARGEST_DEPTH:
            raise SimulationError(f"the draft depth is {depth}; it must be from 1 to {LARGEST_DEPTH}")
        if not (0 <= heterogeneity <= 2 and 0 <= spread <= 1):
            raise SimulationError("acceptance heterogeneity must be from 0 to 2 and confidence spread from 0 to 1")
        self.depth = depth
        self._curve = np.array(survival.to_depth(depth))
        self._spread = spread
        generator = np.random.default_rng([seed, 2])
        self._uniform: NDArray[np.float64] = generator.random(_TABLE)
        self._mood: NDArray[np.float64] = spread * generator.uniform(-1.0, 1.0, _TABLE)
        self._exponents: NDArray[np.float64] = np.exp(heterogeneity * generator.standard_normal(_TABLE))
        # Requests that are all alike share one table of outcomes and of confidence.
        self._outcomes = None if heterogeneity else self._drawn(self._curve, np.arange(_TABLE))
        self._known = None if heterogeneity else self._confidence(self._curve[None, :], np.arange(_TABLE))

    def curve(self, request_index: int) -> NDArray[np.float64]:
        """The request's mean survival, [depth]."""
        return np.asarray(self._curve ** self._exponents[request_index * _STRIDE % _TABLE])

    def accepted(self, request_index: int, output_tokens: int) -> bytes:
        """Accepted drafts of rounds offering `depth`, by what the answer has left: [left], left from 0 to its length.

        The round after n of `output_tokens` tokens is [output_tokens - n].
        """
        rounds = (first_round(request_index) + np.arange(output_tokens, -1, -1)) % _TABLE
        if self._outcomes is not None:
            return self._outcomes[rounds].tobytes()
        return self._drawn(self.curve(request_index), rounds).tobytes()

    def _drawn(self, curve: NDArray[np.float64], rounds: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Accepted drafts of these rounds of a request with this curve."""
        survived = self.survival(curve[None, :], rounds) > self._uniform[rounds][:, None]
        return np.asarray(survived.sum(axis=1), dtype=np.uint8)

    def confidence(
        self, curves: NDArray[np.float64], slots: NDArray[np.int64], rounds: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """What a confidence head says of these rounds: conditional and joint probabilities, [rounds, 2, depth].

        `curves`: [request_slots, depth], of which `slots` [rounds] says whose belongs to each round.
        """
        at = rounds % _TABLE
        return self._confidence(curves[slots], at) if self._known is None else self._known.take(at, axis=0)

    def _confidence(self, curves: NDArray[np.float64], rounds: NDArray[np.int64]) -> NDArray[np.float32]:
        joint = self.survival(curves, rounds)
        conditional = joint.copy()
        conditional[:, 1:] /= np.maximum(joint[:, :-1], _SMALLEST)
        return np.minimum(np.stack((conditional, joint), axis=1), 1.0).astype(np.float32)

    def survival(self, curves: NDArray[np.float64], rounds: ArrayLike) -> NDArray[np.float64]:
        """The rounds' own survival [rounds, depth], which `accepted` is drawn from.

        `curves`: [rounds, depth] or [1, depth]. `rounds`: first_round of the request plus the tokens emitted before.
        """
        mood = self._mood[np.asarray(rounds, dtype=np.int64) % _TABLE]
        return np.asarray(curves * (1 + mood[:, None] * (1 - curves)))


def first_round(request_index: int) -> int:
    """Number of a request's first round; a round's luck depends on its number alone."""
    return request_index * _STRIDE
