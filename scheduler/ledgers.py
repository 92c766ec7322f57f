"""What exploration may cost (S7, S8): two ledgers in exact whole numbers, and the one open episode.

A ledger earns a share of ordinary execution, 1/499 (0.002 / 0.998) for timing refresh and 1/99 (0.01 / 0.99) for
acceptance learning, up to 5 ms; a full ledger may pay for one episode. Counted in units of 1/denominator ns, so that
the first refresh needs exactly 2,495 ms of ordinary execution and the first acceptance probe 495 ms.
"""

from __future__ import annotations

import dataclasses

from scheduler.plans import LedgerBalances, Reason

CAP_NS = 5_000_000
TIMING_DENOMINATOR = 499
ACCEPTANCE_DENOMINATOR = 99
NS_PER_MS = 1e6


@dataclasses.dataclass(slots=True)
class Ledger:
    """`units` / `denominator` is the credit in ns; it may be negative, a debt. Totals in ns."""

    denominator: int
    units: int = 0
    ordinary_ns: int = 0
    spent_ns: int = 0

    @property
    def credit_ns(self) -> int:
        """The credit in whole ns, rounded down."""
        return self.units // self.denominator

    @property
    def full(self) -> bool:
        """Whether an episode may open."""
        return self.units >= CAP_NS * self.denominator

    def earn(self, ordinary_ns: int) -> None:
        """Credits the share of an ordinary execution, up to the cap."""
        self.ordinary_ns += ordinary_ns
        self.units = min(self.units + ordinary_ns, CAP_NS * self.denominator)

    def charge(self, spent_ns: int) -> None:
        """Pays for an episode, on credit if need be."""
        self.spent_ns += spent_ns
        self.units -= spent_ns * self.denominator

    def idle(self) -> None:
        """Idle time discards credit and preserves debt."""
        self.units = min(self.units, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Episode:
    """A probe between its commit and its completion. `reason`: TIMING_REFRESH or ACCEPTANCE_LEARNING."""

    reason: Reason
    fence: int


@dataclasses.dataclass(slots=True)
class Ledgers:
    """Both ledgers, the open episode, and what the discovery of unknown graphs took (it neither earns nor spends)."""

    timing: Ledger = dataclasses.field(default_factory=lambda: Ledger(TIMING_DENOMINATOR))
    acceptance: Ledger = dataclasses.field(default_factory=lambda: Ledger(ACCEPTANCE_DENOMINATOR))
    discovery_ns: int = 0
    episode: Episode | None = None

    def ledger(self, reason: Reason) -> Ledger | None:
        """The ledger that pays for such a plan; None for ordinary work and discovery."""
        if reason is Reason.TIMING_REFRESH:
            return self.timing
        return self.acceptance if reason is Reason.ACCEPTANCE_LEARNING else None

    def may_open(self, reason: Reason) -> bool:
        """Whether a plan of this reason may be committed: always, or for a probe with full credit and none open."""
        ledger = self.ledger(reason)
        return ledger is None or (ledger.full and self.episode is None)

    def credit_ns(self, reason: Reason) -> int:
        """The plan's exploration_credit_ns: its ledger's credit, 0 for ordinary work and discovery."""
        ledger = self.ledger(reason)
        return 0 if ledger is None else ledger.credit_ns

    def open(self, reason: Reason, fence: int) -> None:
        """A committed plan; a probe opens its episode. The caller has asked may_open()."""
        assert self.may_open(reason), "commit rechecks the credit"
        if self.ledger(reason) is not None:
            self.episode = Episode(reason, fence)

    def close(self, fence: int, spent_ns: int) -> None:
        """A completed fence: if it is the open episode's, its ledger pays `spent_ns` and the episode ends."""
        if self.episode is None or self.episode.fence != fence:
            return
        ledger = self.ledger(self.episode.reason)
        assert ledger is not None, "only probes open episodes"
        ledger.charge(spent_ns)
        self.episode = None

    def earn(self, ordinary_ns: int) -> None:
        """An ordinary execution of positive device time in which not every lane failed: both ledgers earn."""
        self.timing.earn(ordinary_ns)
        self.acceptance.earn(ordinary_ns)

    def discover(self, service_ns: int) -> None:
        """The execution of a graph that had no estimate."""
        self.discovery_ns += service_ns

    def idle(self) -> None:
        """No resident that is not cancelled, and nothing in flight."""
        self.timing.idle()
        self.acceptance.idle()

    def balances(self) -> LedgerBalances:
        """In ms, as plans record them."""
        timing, acceptance = self.timing, self.acceptance
        return LedgerBalances(
            timing.credit_ns / NS_PER_MS,
            timing.spent_ns / NS_PER_MS,
            timing.ordinary_ns / NS_PER_MS,
            acceptance.credit_ns / NS_PER_MS,
            acceptance.spent_ns / NS_PER_MS,
            acceptance.ordinary_ns / NS_PER_MS,
            self.discovery_ns / NS_PER_MS,
        )
