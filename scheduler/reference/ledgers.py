"""Credit for exploration: timing refresh and acceptance learning (S7, S8). Exact integers throughout."""

from __future__ import annotations

from scheduler.plans import LedgerBalances, Reason

CAP_NS = 5_000_000


class Ledger:
    """Each ordinary ns earns 1/denominator ns. `units` are credit ns times the denominator."""

    def __init__(self, denominator: int) -> None:
        self.denominator = denominator
        self.units = 0
        self.spent_ns = 0

    @property
    def full(self) -> bool:
        """The whole cap is there."""
        return self.units >= CAP_NS * self.denominator

    @property
    def credit_ns(self) -> int:
        """The credit in ns, rounded down."""
        return self.units // self.denominator

    def earn(self, ordinary_ns: int) -> None:
        """An ordinary execution."""
        self.units = min(self.units + ordinary_ns, CAP_NS * self.denominator)

    def charge(self, charged_ns: int) -> None:
        """A probe's own execution."""
        self.units -= charged_ns * self.denominator
        self.spent_ns += charged_ns


class Ledgers:
    """Both ledgers, the total of discovery, and whether an episode is open."""

    def __init__(self) -> None:
        self.of = {Reason.TIMING_REFRESH: Ledger(499), Reason.ACCEPTANCE_LEARNING: Ledger(99)}
        self.ordinary_ns = 0
        self.discovery_ns = 0
        self.open = False

    def funds(self, reason: Reason) -> bool:
        """Full credit of this ledger and no open episode of either."""
        return self.of[reason].full and not self.open

    def commit(self, reason: Reason) -> None:
        """Opens an episode for a probe."""
        self.open = self.open or reason in self.of

    def complete(self, reason: Reason, service_ns: int, wall_ns: int, failed: bool) -> None:
        """Earns, charges or counts one completed frame. `failed`: every lane of it did."""
        if reason in self.of:
            self.of[reason].charge(service_ns or wall_ns)
            self.open = False
        elif reason is Reason.DISCOVERY:
            self.discovery_ns += service_ns
        elif service_ns and not failed:
            self.ordinary_ns += service_ns
            for ledger in self.of.values():
                ledger.earn(service_ns)

    def idle(self) -> None:
        """Nobody is there: credit is lost, debt stays."""
        for ledger in self.of.values():
            ledger.units = min(ledger.units, 0)

    def balances(self) -> LedgerBalances:
        """The balances as plans record them."""
        timing, acceptance = self.of[Reason.TIMING_REFRESH], self.of[Reason.ACCEPTANCE_LEARNING]
        return LedgerBalances(
            timing_credit_ms=timing.credit_ns / 1e6,
            timing_spent_ms=timing.spent_ns / 1e6,
            timing_ordinary_ms=self.ordinary_ns / 1e6,
            acceptance_credit_ms=acceptance.credit_ns / 1e6,
            acceptance_spent_ms=acceptance.spent_ns / 1e6,
            acceptance_ordinary_ms=self.ordinary_ns / 1e6,
            discovery_ms=self.discovery_ns / 1e6,
        )
