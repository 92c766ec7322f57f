"""The "decides" side: prepared-graph scheduling as a pure state machine.

Commands and completions go in, plans come out; time is passed in. See scheduler.scheduler.RequestScheduler.
"""

from scheduler.catalog import Catalog, CostEstimate
from scheduler.plans import (
    Alternative,
    BarredBy,
    CostState,
    LedgerBalances,
    PlanLane,
    PlanParts,
    Reason,
    Role,
    ScheduledPlan,
    ScoreKind,
)
from scheduler.policy import COEFFICIENTS, PRESETS, Coefficient, PolicyConfig
from scheduler.records import (
    CompletionRecord,
    ExecutionTiming,
    FinishReason,
    GeneratedToken,
    RequestHandle,
    RequestSpec,
)
from scheduler.scheduler import RequestScheduler
from scheduler.shapes import Allocation, GraphKind, GraphShape

__all__ = [
    "COEFFICIENTS",
    "PRESETS",
    "Allocation",
    "Alternative",
    "BarredBy",
    "Catalog",
    "Coefficient",
    "CompletionRecord",
    "CostEstimate",
    "CostState",
    "ExecutionTiming",
    "FinishReason",
    "GeneratedToken",
    "GraphKind",
    "GraphShape",
    "LedgerBalances",
    "PlanLane",
    "PlanParts",
    "PolicyConfig",
    "Reason",
    "RequestHandle",
    "RequestScheduler",
    "RequestSpec",
    "Role",
    "ScheduledPlan",
    "ScoreKind",
]
