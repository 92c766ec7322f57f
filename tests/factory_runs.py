"""One believable engine run for the store factories: a small round-robin of prefill and decode plans."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import random

from scheduler.policy import PolicyConfig
from scheduler.shapes import GraphKind, GraphShape

PREFILL_MS_PER_TOKEN = 0.11
LEDGERS = {
    "exploration_credit_ms": 0.0,
    "timing_credit_ms": 0.0,
    "timing_spent_ms": 0.0,
    "timing_ordinary_ms": 0.0,
    "acceptance_credit_ms": 0.0,
    "acceptance_spent_ms": 0.0,
    "acceptance_ordinary_ms": 0.0,
}
SPECULATION = {"offered_tokens": 0, "draft_tokens": 0, "accepted_tokens": 0}


@dataclasses.dataclass
class SimulatedRequest:
    request_id: str
    arrived_ns: int
    prompt: int
    output: int
    prompt_done: int = 0
    output_done: int = 0
    admitted_ns: int | None = None
    first_output_ns: int | None = None
    finished_ns: int | None = None
    lanes: int = 0


class SimulatedRun:
    """The rows of one engine run, plan by plan."""

    def __init__(self, run_id: str, random_: random.Random, started_at: dt.datetime, request_count: int) -> None:
        self.run_id = run_id
        self.random = random_
        self.started_at = started_at
        self.started_ns = random_.randrange(1 << 40, 1 << 41)
        self.now_ns = self.started_ns + 5_000_000
        self.waiting: list[SimulatedRequest] = []
        self.active: list[SimulatedRequest] = []
        self.requests: list[SimulatedRequest] = []
        self.request_count = request_count
        self.seen: set[GraphShape] = set()
        self.last_completed_ns: dict[GraphShape, int] = {}
        self.discovery_ms = 0.0
        self.plan_rows: list[dict[str, object]] = []
        self.lane_rows: list[dict[str, object]] = []
        self.alternative_rows: list[dict[str, object]] = []

    def wall(self, ns: int) -> dt.datetime:
        return self.started_at + dt.timedelta(microseconds=(ns - self.started_ns) // 1000)

    def arrive(self) -> None:
        number = len(self.requests) + 1
        request = SimulatedRequest(
            f"req-{self.run_id[-4:]}-{number:05d}",
            self.now_ns - self.random.randrange(100_000, 3_000_000),
            prompt=self.random.randrange(12, 400),
            output=self.random.randrange(8, 80),
        )
        self.requests.append(request)
        self.waiting.append(request)

    def step(self, fence: int, version: int, policy: PolicyConfig, due_requests: int) -> None:
        while len(self.requests) < min(due_requests, self.request_count):
            self.arrive()
        if not self.waiting and not self.active:
            if len(self.requests) < self.request_count:
                self.arrive()
            else:  # the plans outlast the requests: the newest one answers a little longer
                last = self.requests[-1]
                last.output, last.finished_ns = last.output + 20, None
                self.active.append(last)
        prefill = bool(self.waiting) and (not self.active or self.random.random() < 0.5)
        lanes = self.waiting[:1] if prefill else self.active[:16]
        shape = self._shape(lanes, prefill)
        self._commit(fence, version, policy, shape, lanes, prefill)

    def _shape(self, lanes: list[SimulatedRequest], prefill: bool) -> GraphShape:
        if not prefill:
            return GraphShape(GraphKind.DECODE, 1 << (len(lanes) - 1).bit_length())
        left = lanes[0].prompt - lanes[0].prompt_done
        return GraphShape(GraphKind.PREFILL, 1, prefill_capacity=min(256, max(64, 1 << (left - 1).bit_length())))

    def _commit(
        self,
        fence: int,
        version: int,
        policy: PolicyConfig,
        shape: GraphShape,
        lanes: list[SimulatedRequest],
        prefill: bool,
    ) -> None:
        known = shape in self.seen
        self.seen.add(shape)
        cost_ms = (
            PREFILL_MS_PER_TOKEN * shape.prefill_capacity if prefill else 3.0 + 0.4 * shape.batch_capacity
        ) * self.random.uniform(0.9, 1.2)
        device_ms = cost_ms * self.random.uniform(0.95, 1.1)
        committed = self.now_ns
        started = committed + self.random.randrange(20_000, 90_000)
        completed = started + int(device_ms * 1e6)
        published = completed + self.random.randrange(30_000, 120_000)
        prompt_tokens = min(shape.prefill_capacity, lanes[0].prompt - lanes[0].prompt_done) if prefill else 0
        ends_prompt = prefill and lanes[0].prompt_done + prompt_tokens == lanes[0].prompt
        emits = not prefill or ends_prompt
        scale = math.exp(-0.1 * self.random.random())
        parts = self._lanes(fence, policy, lanes, prefill, prompt_tokens, emits, published, scale)
        score = _score(parts, cost_ms if known else None)
        self.plan_rows.append(
            {
                **self._times(fence, committed, started, completed, device_ms),
                **_shape_values(shape),
                "reason": "ordinary" if known else "discovery",
                **score,
                "log_scale": math.log(scale),
                "active_rows": len(lanes),
                "active_decoders": len(self.active),
                "logical_rows": prompt_tokens if prefill else len(lanes),
                "selected_cost_ms": cost_ms if known else 0.0,
                "observation_age_ms": (committed - self.last_completed_ns[shape]) / 1e6 if known else None,
                "cost_state": "fresh" if known else "unknown",
                "candidates": 2 + self.random.randrange(6),
                **LEDGERS,
                "discovery_ms": self.discovery_ms,
                "queue_depth": len(self.waiting),
                "frame_slot": fence % 2,
                "policy_version": version,
                "plan_us": self.random.uniform(60, 250),
                "prompt_tokens": prompt_tokens,
                "output_tokens": len(lanes) if emits else 0,
                **SPECULATION,
                "deliveries": len(lanes) if emits else 0,
                "margin": None,
            }
        )
        self._alternatives(fence, shape, lanes, score)
        if not known:
            self.discovery_ms += device_ms
        self.last_completed_ns[shape] = completed
        self._account(lanes, prefill, prompt_tokens, emits, committed, published)
        self.now_ns = published + self.random.randrange(50_000, 250_000)

    def _times(self, fence: int, committed: int, started: int, completed: int, device_ms: float) -> dict[str, object]:
        return {
            "run_id": self.run_id,
            "fence": fence,
            "committed_at": self.wall(committed),
            "committed_ns": committed,
            "started_ns": started,
            "completed_at": self.wall(completed),
            "completed_ns": completed,
            "outcome": "completed",
            "device_ms": device_ms,
            "wall_ms": device_ms + (started - committed) / 1e6,
            "exposed_delivery_ms": 0.0,
        }

    def _lanes(
        self,
        fence: int,
        policy: PolicyConfig,
        lanes: list[SimulatedRequest],
        prefill: bool,
        prompt_tokens: int,
        emits: bool,
        published: int,
        scale: float,
    ) -> dict[str, float]:
        totals = {"token_value": 0.0, "delivery_value": 0.0, "age_relief": 0.0, "terminal_relief": 0.0}
        for lane, request in enumerate(lanes):
            token_price = policy.output_token_value * scale * self.random.uniform(0.8, 1.6)
            delivery_price = policy.delivery_fairness * scale * self.random.uniform(1, 40)
            age_ms = self.random.uniform(2, 60)
            tokens = float(emits)
            token_value = token_price * tokens + prompt_tokens * scale
            delivery_value = delivery_price * tokens
            age_relief = policy.decode_age_price * age_ms * age_ms * tokens * scale
            totals["token_value"] += token_value
            totals["delivery_value"] += delivery_value
            totals["age_relief"] += age_relief
            self.lane_rows.append(
                {
                    "run_id": self.run_id,
                    "fence": fence,
                    "lane": lane,
                    "request_id": request.request_id,
                    "generation": 1,
                    "role": "prefill" if prefill else "decode",
                    "prompt_tokens": prompt_tokens,
                    "query_length": prompt_tokens if prefill else 1,
                    "ceiling": int(emits),
                    "proposal_source": None,
                    "token_price": token_price,
                    "delivery_price": delivery_price,
                    "age_ms": age_ms,
                    "sigma_ms": self.random.uniform(50, 100),
                    "expected_tokens": tokens,
                    "terminal_value": 0.0,
                    "lane_value": token_value + delivery_value + age_relief,
                    "offered_tokens": 0,
                    "committed_tokens": int(emits),
                    "accepted_tokens": 0,
                    "delivered": emits,
                    "published_ns": published if emits else None,
                }
            )
        return totals

    def _alternatives(
        self, fence: int, shape: GraphShape, lanes: list[SimulatedRequest], winner: dict[str, object]
    ) -> None:
        rivals: list[tuple[GraphShape, list[SimulatedRequest]]] = []
        if shape.kind is GraphKind.PREFILL and self.active:
            rivals.append(
                (GraphShape(GraphKind.DECODE, 1 << (min(16, len(self.active)) - 1).bit_length()), self.active)
            )
        if shape.kind is GraphKind.DECODE and self.waiting:
            rivals.append((GraphShape(GraphKind.PREFILL, 1, prefill_capacity=128), self.waiting[:1]))
        if shape.kind is GraphKind.DECODE and shape.batch_capacity > 1:
            rivals.append((GraphShape(GraphKind.DECODE, shape.batch_capacity // 2), lanes[: shape.batch_capacity // 2]))
        kind, best = winner["score_kind"], winner["value_rate"]
        margins = []
        for rank, (rival, cohort) in enumerate(rivals, start=1):
            known = rival in self.seen
            share = self.random.uniform(0.3, 0.95)
            parts = {n: float(winner[n]) * share for n in _PARTS}  # type: ignore[arg-type]
            cost_ms = 3.0 + rival.batch_capacity
            horizon = winner["score_horizon_ms"] if known else None
            score = _score(parts, horizon)  # type: ignore[arg-type]
            if score["score_kind"] == kind and best:
                margins.append((float(best) - float(score["value_rate"])) / abs(float(best)))  # type: ignore[arg-type]
            self.alternative_rows.append(
                {
                    "run_id": self.run_id,
                    "fence": fence,
                    "rank": rank,
                    **_shape_values(rival),
                    **score,
                    "log_scale": self.plan_rows[-1]["log_scale"],
                    "active_rows": min(len(cohort), rival.batch_capacity),
                    "request_ids": [r.request_id for r in cohort[: rival.batch_capacity]],
                    "selected_cost_ms": cost_ms if known else 0.0,
                    "cost_state": "fresh" if known else "unknown",
                    "barred_by": "none" if known else "unmeasured",
                }
            )
        self.plan_rows[-1]["margin"] = min(margins, default=None)

    def _account(
        self,
        lanes: list[SimulatedRequest],
        prefill: bool,
        prompt_tokens: int,
        emits: bool,
        committed: int,
        published: int,
    ) -> None:
        for request in list(lanes):
            request.lanes += 1
            request.admitted_ns = request.admitted_ns or committed - 40_000
            request.prompt_done += prompt_tokens
            if not emits:
                continue
            request.output_done += 1
            request.first_output_ns = request.first_output_ns or published
            if prefill:
                self.waiting.remove(request)
                self.active.append(request)
            if request.output_done >= request.output:
                request.finished_ns = published + 20_000
                self.active.remove(request)

    def cut_off(self, outcome: str) -> int:
        """Turns the newest plan into one that never completed; returns its fence."""
        plan = self.plan_rows[-1]
        plan.update(
            outcome=outcome,
            started_ns=None,
            completed_at=None,
            completed_ns=None,
            device_ms=None,
            wall_ms=None,
            exposed_delivery_ms=None,
            output_tokens=0,
            deliveries=0,
        )
        for lane in self.lane_rows:
            if lane["fence"] == plan["fence"]:
                self._take_back(str(lane["request_id"]), emitted=bool(lane["committed_tokens"]))
                lane.update(committed_tokens=0, delivered=False, published_ns=None)
        return int(plan["fence"])  # type: ignore[call-overload]

    def _take_back(self, request_id: str, *, emitted: bool) -> None:
        request = next(r for r in self.requests if r.request_id == request_id)
        request.output_done -= emitted
        request.finished_ns = None
        if request.output_done == 0:
            request.first_output_ns = None

    def request_rows(self, ended: bool) -> list[dict[str, object]]:
        rows = []
        for number, r in enumerate(self.requests):
            done = r.finished_ns is not None
            first, last = r.first_output_ns, r.finished_ns or self.now_ns
            queued = (r.admitted_ns or self.now_ns) - r.arrived_ns
            rows.append(
                {
                    "run_id": self.run_id,
                    "request_id": r.request_id,
                    "model": "smollm2-135m-instruct",
                    "arrived_at": self.wall(r.arrived_ns),
                    "admitted_at": self.wall(r.admitted_ns) if r.admitted_ns else None,
                    "first_output_at": self.wall(first) if first else None,
                    "finished_at": self.wall(last) if done or ended else None,
                    "prompt_tokens": r.prompt,
                    "cached_tokens": 0,
                    "output_tokens": r.output_done,
                    "max_tokens": 512 if number % 3 else max(r.output, 1),
                    "finish_reason": ("stop" if number % 3 else "length") if done else ("error" if ended else None),
                    "error": "the engine ended" if ended and not done else None,
                    "preemptions": 0,
                    "queue_ms": queued / 1e6 if done else None,
                    "tokenize_ms": 0.2,
                    "prefill_ms": (first - (r.admitted_ns or 0)) / 1e6 if done and first else None,
                    "decode_ms": (last - first - 20_000) / 1e6 if done and first else None,
                    "publish_ms": 0.02 if done else None,
                    "trace_id": f"{number + 1:032x}",
                    "prefix_key": None,
                }
            )
        return rows


_PARTS = ("token_value", "delivery_value", "age_relief", "terminal_relief")


def _score(parts: dict[str, float], horizon_ms: float | None) -> dict[str, object]:
    work = sum(parts.values())
    wait_cost = 0.0 if horizon_ms is None else 0.25
    return {
        "score_kind": "work" if horizon_ms is None else "rate",
        "value_rate": work if horizon_ms is None else work / horizon_ms - wait_cost,
        **parts,
        "wait_cost": wait_cost,
        "score_horizon_ms": horizon_ms,
        "following_kind": None,
        "following_shape": None,
    }


def _shape_values(shape: GraphShape) -> dict[str, object]:
    return {
        "kind": shape.kind.value,
        "batch_capacity": shape.batch_capacity,
        "draft_depth": shape.draft_depth,
        "target_width": shape.target_width,
        "target_rows": shape.target_rows,
        "prefill_capacity": shape.prefill_capacity,
        "speculation_enabled": shape.speculation_enabled,
        "allocation": shape.allocation.value,
        "prompt_rows": shape.prompt_rows,
    }
