"""One request's life as hand-made rows: plans at chosen ms, each with its lanes and runner-ups."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from factories import policy_row

from scheduler.policy import PolicyConfig
from service.store.engines import write_transaction
from service.store.tables import (
    SHAPE_COLUMNS,
    engine_runs,
    plan_alternatives,
    plan_lanes,
    plans,
    policy_versions,
    requests,
)

Row = dict[str, Any]
RUN = "run-1"
AT = dt.datetime(2026, 3, 1, 12, 0, tzinfo=dt.UTC)
START_NS = 1 << 41  # beyond what 32 bits hold, as on a machine that has been up for a while
RELIEFS = ("prompt_wait_relief", "decode_late_relief")
ZEROS = ("log_scale", "token_value", "delivery_value", "age_relief", "terminal_relief", "wait_cost", *RELIEFS)
LEDGERS = (
    *("exploration_credit_ms", "timing_credit_ms", "timing_spent_ms", "acceptance_credit_ms", "acceptance_spent_ms"),
    *("timing_ordinary_ms", "acceptance_ordinary_ms", "discovery_ms"),
)
COUNTS = ("prompt_tokens", "output_tokens", "offered_tokens", "draft_tokens", "accepted_tokens", "deliveries")


def at(ms: float) -> dt.datetime:
    return AT + dt.timedelta(milliseconds=ms)


def ns(ms: float) -> int:
    return START_NS + int(ms * 1e6)


def shape(kind: str, *, batch: int = 1, capacity: int = 0) -> Row:
    rows = batch if kind in ("decode", "speculative", "mixed") else 0
    values = (kind, batch, 0, 1, rows, capacity, False, "none", 1)
    return dict(zip(SHAPE_COLUMNS, values, strict=True))


class Case:
    """Collects rows; `write(engine)` stores them."""

    def __init__(self, at: dt.datetime = AT) -> None:
        self.begun = at
        self.plans: list[Row] = []
        self.lanes: list[Row] = []
        self.alternatives: list[Row] = []
        self.requests: list[Row] = []

    def at_ms(self, ms: float) -> dt.datetime:
        return self.begun + dt.timedelta(milliseconds=ms)

    def request(self, name: str, arrived_ms: float, **values: Any) -> Row:
        row: Row = {column.name: None for column in requests.columns}
        row |= {
            "run_id": RUN,
            "request_id": name,
            "model": "m",
            "arrived_at": self.at_ms(arrived_ms),
            "prompt_tokens": 64,
        }
        row |= {
            "cached_tokens": 0,
            "output_tokens": 0,
            "max_tokens": 16,
            "preemptions": 0,
            "admitted_at": self.at_ms(arrived_ms),
        }
        self.requests.append(row | values)
        return self.requests[-1]

    def plan(self, start_ms: float, end_ms: float, served: dict[str, Row], kind: str = "decode", **values: Any) -> int:
        """A completed plan; `served` maps a request to what its lane holds beside the defaults. Returns its fence."""
        fence = len(self.plans) + 1
        row: Row = {column.name: None for column in plans.columns}
        row |= dict.fromkeys((*ZEROS, *LEDGERS), 0.0) | dict.fromkeys(COUNTS, 0)
        row |= shape(kind, batch=max(1, len(served)), capacity=512 if kind == "prefill" else 0)
        row |= {"run_id": RUN, "fence": fence, "committed_at": self.at_ms(start_ms), "committed_ns": ns(start_ms)}
        row |= {"started_ns": ns(start_ms), "completed_ns": ns(end_ms), "completed_at": self.at_ms(end_ms)}
        row |= {"device_ms": end_ms - start_ms, "wall_ms": end_ms - start_ms, "exposed_delivery_ms": 0.0}
        row |= {"reason": "ordinary", "score_kind": "rate", "value_rate": 3.0, "score_horizon_ms": 1.0}
        row |= {"active_rows": len(served), "active_decoders": 0, "logical_rows": 1, "candidates": 2, "margin": None}
        row |= {"selected_cost_ms": end_ms - start_ms, "cost_state": "fresh", "plan_us": 1.0, "queue_depth": 0}
        row |= {"frame_slot": 0, "policy_version": 1, "outcome": "completed"}
        for lane, (name, own) in enumerate(served.items()):
            self._lane(fence, lane, name, kind, end_ms, own)
            row["prompt_tokens"] += self.lanes[-1]["prompt_tokens"]
            row["output_tokens"] += self.lanes[-1]["committed_tokens"]
        self.plans.append(row | values)
        return fence

    def _lane(self, fence: int, lane: int, name: str, kind: str, end_ms: float, own: Row) -> None:
        row: Row = {"run_id": RUN, "fence": fence, "lane": lane, "request_id": name, "generation": 1}
        row |= {"role": "prefill" if kind == "prefill" else "decode", "query_length": 1, "ceiling": 1}
        row |= dict.fromkeys(
            ("token_price", "delivery_price", "age_ms", "sigma_ms", "terminal_value", "lane_value"), 1.0
        )
        row |= {"expected_tokens": 1.0, "offered_tokens": 0, "accepted_tokens": 0, "proposal_source": None}
        tokens = 0 if kind == "prefill" else 1
        row |= {"prompt_tokens": 64 if kind == "prefill" else 0, "committed_tokens": tokens}
        row |= own
        row |= {"delivered": row["committed_tokens"] > 0}
        row["published_ns"] = ns(end_ms) if row["committed_tokens"] else None
        self.lanes.append(row)

    def rival(self, fence: int, names: list[str], **values: Any) -> None:
        row: Row = {**shape("decode"), **dict.fromkeys(ZEROS, 0.0), "run_id": RUN, "fence": fence}
        row |= {"rank": 1 + sum(other["fence"] == fence for other in self.alternatives), "active_rows": len(names)}
        row |= {"score_kind": "rate", "value_rate": 2.0, "score_horizon_ms": 1.0, "request_ids": names}
        row |= {"following_kind": None, "following_shape": None, "selected_cost_ms": 1.0}
        self.alternatives.append(row | {"cost_state": "fresh", "barred_by": "none"} | values)

    def write(self, engine: sa.Engine) -> None:
        run = {"run_id": RUN, "started_at": self.begun, "host": "h", "version": "1", "model": "m", "device": "cpu"}
        run |= {"catalog_digest": "0", "settings": {}, "started_wall_ns": int(self.begun.timestamp()) * 10**9}
        run |= {"started_monotonic_ns": START_NS, "ended_at": None, "end_reason": None}
        with write_transaction(engine) as connection:
            connection.execute(policy_versions.insert(), policy_row(1, PolicyConfig.balanced(), self.begun))
            connection.execute(engine_runs.insert(), run)
            for table, rows in (
                (requests, self.requests),
                (plans, self.plans),
                (plan_lanes, self.lanes),
                (plan_alternatives, self.alternatives),
            ):
                if rows:
                    connection.execute(table.insert(), rows)
