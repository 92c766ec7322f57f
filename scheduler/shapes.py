"""Graph shapes: what identifies a prepared program (specification S1, S2, S12)."""

from __future__ import annotations

import dataclasses
import enum
import re

from scheduler.checks import whole
from scheduler.errors import InvalidShape

MAX_BATCH_CAPACITY = 4096
MAX_PREFILL_CAPACITY = 1 << 20
MAX_TARGET_WIDTH = 64


class GraphKind(enum.Enum):
    """The families of prepared programs. Values are the names used in SQL, HTTP, spans and metrics."""

    __hash__ = object.__hash__  # members are single; Enum hashes their names, in Python, at every look-up

    INIT = "init"
    RESTORE = "restore"
    SNAPSHOT = "snapshot"
    TERMINAL_SNAPSHOT = "terminal_snapshot"
    VISION = "vision"
    PREFILL = "prefill"
    SCORED_PREFILL = "scored_prefill"
    DECODE = "decode"
    SPECULATIVE = "speculative"
    MIXED = "mixed"


class Allocation(enum.Enum):
    """Who divides a speculative graph's target rows among its lanes (S2)."""

    __hash__ = object.__hash__  # as GraphKind

    NONE = "none"
    HOST = "host"
    DEVICE = "device"


_GENERATION_KINDS = frozenset({GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED})
_PREFILL_KINDS = frozenset({GraphKind.PREFILL, GraphKind.SCORED_PREFILL, GraphKind.MIXED})


@dataclasses.dataclass(frozen=True, slots=True)
class GraphShape:
    """One prepared program's physical extents; equality is graph identity.

    `batch_capacity` B: request rows (in MIXED the prompt rows are among them).
    `draft_depth` D: produced candidate positions per lane.
    `target_width` W: verification rows per lane, the pending token included.
    `target_rows` P: verification rows over all lanes; 0 becomes B*W for DECODE, SPECULATIVE and MIXED
    and stays 0 for other kinds. P never counts prompt rows.
    `prefill_capacity`: prompt tokens over all prompt rows, 0 for kinds without one.
    `prompt_rows` R: rows of a MIXED graph that may carry a prompt, at most B; 1 for every other kind (S12).

    Raises InvalidShape when an extent is out of bounds or contradicts the kind.
    """

    kind: GraphKind
    batch_capacity: int
    draft_depth: int = 0
    target_width: int = 1
    target_rows: int = 0
    prefill_capacity: int = 0
    speculation_enabled: bool = False
    allocation: Allocation = Allocation.NONE
    prompt_rows: int = 1

    def __post_init__(self) -> None:
        self._check_types()
        if self.kind in _GENERATION_KINDS and self.target_rows == 0:
            object.__setattr__(self, "target_rows", self.batch_capacity * self.target_width)
        self._check_rows()
        self._check_kind()

    def _check_types(self) -> None:
        if not isinstance(self.kind, GraphKind) or not isinstance(self.allocation, Allocation):
            raise InvalidShape(f"kind {self.kind!r}, allocation {self.allocation!r}: a GraphKind and an Allocation")
        if not isinstance(self.speculation_enabled, bool):
            raise InvalidShape(f"speculation_enabled is {self.speculation_enabled!r}; it must be True or False")
        _within("batch_capacity", self.batch_capacity, 1, MAX_BATCH_CAPACITY)
        _within("draft_depth", self.draft_depth, 0, MAX_TARGET_WIDTH - 1)
        _within("target_width", self.target_width, 1, MAX_TARGET_WIDTH)

    def _check_rows(self) -> None:
        _within("target_rows", self.target_rows, 0, self.batch_capacity * self.target_width)
        _within("prefill_capacity", self.prefill_capacity, 0, MAX_PREFILL_CAPACITY)
        _within("prompt_rows", self.prompt_rows, 1, self.batch_capacity)

    def _check_kind(self) -> None:
        if (self.kind in _PREFILL_KINDS) != (self.prefill_capacity > 0):
            raise InvalidShape(
                f"{self.kind.value}: prefill_capacity is {self.prefill_capacity}; prefill, scored_prefill and "
                "mixed graphs need a positive one, every other kind needs 0"
            )
        if self.kind not in _GENERATION_KINDS and (self.target_rows or self.target_width != 1 or self.draft_depth):
            raise InvalidShape(f"{self.kind.value}: only decode, speculative and mixed graphs have D, W and P")
        if self.kind is not GraphKind.MIXED and self.prompt_rows != 1:
            raise InvalidShape(f"{self.kind.value}: prompt_rows is {self.prompt_rows}; only mixed graphs have several")
        if self.kind is GraphKind.DECODE and (self.draft_depth or self.target_width != 1):
            raise InvalidShape("decode: D is 0 and W is 1; a wider graph is speculative")

    @property
    def label(self) -> str:
        """The short form people read and filter by: `decode:B4`, `prefill:B1:C256`."""
        parts = [self.kind.value, f"B{self.batch_capacity}"]
        if self.kind in (GraphKind.SPECULATIVE, GraphKind.MIXED):
            parts += [f"D{self.draft_depth}", f"W{self.target_width}", f"P{self.target_rows}"]
        if self.prefill_capacity:
            parts.append(f"C{self.prefill_capacity}")
        if self.prompt_rows > 1:
            parts.append(f"R{self.prompt_rows}")
        return ":".join(parts)

    @property
    def lane_width(self) -> int:
        """Rows that one lane can use: min(D+1, W) (S2)."""
        return min(self.draft_depth + 1, self.target_width)

    @property
    def ragged(self) -> bool:
        """Its rows do not suffice for every lane's full width, so they must be divided (S2)."""
        return 0 < self.target_rows < self.batch_capacity * self.lane_width

    @property
    def physical_rows(self) -> int:
        """Token rows that the program computes, padding included."""
        return self.target_rows + self.prefill_capacity


_LABEL_FIELDS = {
    "B": "batch_capacity",
    "D": "draft_depth",
    "W": "target_width",
    "P": "target_rows",
    "C": "prefill_capacity",
    "R": "prompt_rows",
}


def parse_shape_filter(text: str) -> dict[str, str | int]:
    """`decode:B4` -> {"kind": "decode", "batch_capacity": 4}; any subset of B, D, W, P, C, R may follow the kind.

    Raises InvalidShape with an example when the text cannot be read.
    """
    kind, *parts = text.split(":")
    if kind not in {k.value for k in GraphKind}:
        raise InvalidShape(f"{text!r}: {kind!r} is no graph kind; write for example decode:B4 or prefill:C256")
    found: dict[str, str | int] = {"kind": kind}
    for part in parts:
        match = re.fullmatch(r"([BDWPCR])(\d{1,7})", part, flags=re.ASCII)
        if match is None:
            raise InvalidShape(f"{text!r}: cannot read {part!r}; write for example decode:B4 or prefill:C256")
        found[_LABEL_FIELDS[match[1]]] = int(match[2])
    return found


def _within(name: str, value: object, low: int, high: int) -> None:
    if not whole(value, low, high):
        raise InvalidShape(f"{name} is {value!r}; it must be a whole number from {low} to {high}")
