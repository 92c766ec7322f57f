"""Short pieces of believable traffic, to be repeated into a store of any size: `service.load.million`.

An episode is 100 plans that serve four requests from arrival to end, nothing before and nothing after. Its times are
microseconds from its own start at a pace of one; whoever repeats it stretches them.
"""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

PLANS = 100
REQUESTS = 4
GAP_US = 400
"""Between the end of a plan and the start of the next one."""
LEARNED, COPY = "learned", "copy"
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Style:
    """What an episode is like. `draft_depth` 0: plain decoding. `probe`: the reason of one plan in the middle of it."""

    prompts: tuple[int, int] = (40, 500)
    draft_depth: int = 0
    source: str | None = None
    hit_rate: float = 0.0
    mixed: bool = False
    probe: str | None = None


STYLES = (
    Style(),
    Style(draft_depth=3, source=LEARNED, hit_rate=0.62),
    Style(probe="timing_refresh"),
    Style(mixed=True),
    Style(prompts=(600, 1900)),
    Style(draft_depth=5, source=COPY, hit_rate=0.78, probe="acceptance_learning"),
    Style(mixed=True, prompts=(20, 160)),
    Style(draft_depth=2, source=LEARNED, hit_rate=0.55),
)
"""A probe in one of eight is what both ledgers can pay for."""
PROBE_STEP = 50


@dataclasses.dataclass(slots=True)
class Request:
    """One request of an episode while it is made."""

    number: int
    arrived_us: int
    prompt: int
    output: int
    done: int = 0
    made: int = 0
    first_commit_us: int | None = None
    first_output_us: int | None = None
    last_output_us: int = 0
    first_step: int = 0
    first_output_step: int = 0
    last_step: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Episode:
    """Rows by step, from 1 to PLANS. Columns are those of the store, and `*_us` and `step` for the times."""

    plans: list[Row]
    lanes: list[Row]
    alternatives: list[Row]
    requests: list[Row]


def episode(style: Style, seed: int) -> Episode:
    """An episode, always the same for a style and a seed."""
    return _Maker(style, random.Random(seed)).make()


def graph(kind: str, batch: int, draft_depth: int = 0, prefill: int = 0) -> Row:
    """The shape columns of a graph."""
    drafts = kind in ("speculative", "mixed") and draft_depth > 0
    width = draft_depth + 1 if drafts else 1
    return {
        "kind": kind,
        "batch_capacity": batch,
        "draft_depth": draft_depth if drafts else 0,
        "target_width": width,
        "target_rows": 0 if kind == "prefill" else batch * width,
        "prefill_capacity": prefill,
        "speculation_enabled": drafts,
        "allocation": "host" if drafts and draft_depth > 3 else "none",
        "prompt_rows": 1,
    }


def cost_ms(shape: Row) -> float:
    """About how long a graph takes."""
    rows, capacity = float(shape["target_rows"]), float(shape["prefill_capacity"])
    return 18.0 + 2.6 * math.pow(rows, 0.8) + 0.19 * capacity


class _Maker:
    def __init__(self, style: Style, random_: random.Random) -> None:
        self.style, self.random = style, random_
        self.now_us = 0
        self.plans: list[Row] = []
        self.lanes: list[Row] = []
        self.alternatives: list[Row] = []
        self.requests = [
            Request(
                number,
                arrived_us=number * random_.randrange(150_000, 900_000) - random_.randrange(3_000, 40_000),
                prompt=random_.randrange(*style.prompts),
                output=random_.randrange(16, 120),
            )
            for number in range(REQUESTS)
        ]

    def make(self) -> Episode:
        for step in range(1, PLANS + 1):
            self._plan(step)
        return Episode(self.plans, self.lanes, self.alternatives, [self._request_row(r) for r in self.requests])

    def _plan(self, step: int) -> None:
        waiting = [r for r in self.requests if r.done < r.prompt and r.arrived_us < self.now_us]
        active = [r for r in self.requests if r.done == r.prompt and r.made < r.output]
        if not waiting and not active:
            waiting = [r for r in self.requests if r.done < r.prompt][:1]
            for late in waiting:
                late.arrived_us = self.now_us - self.random.randrange(2_000, 20_000)
        if not waiting and not active:  # the plans outlast the requests: one of them answers longer
            self.requests[-1].output += 10
            active = [self.requests[-1]]
        if waiting and (not active or self.random.random() < 0.6):
            self._serve(step, waiting[0], active if self.style.mixed else [], active)
        else:
            self._serve(step, None, active, active)

    def _serve(self, step: int, prompt: Request | None, decoding: list[Request], active: list[Request]) -> None:
        shape = self._shape(prompt, decoding)
        cost = cost_ms(shape) * self.random.uniform(0.97, 1.03)
        published_us = self.now_us + round(cost * 1150)
        tokens = 0 if prompt is None else min(shape["prefill_capacity"], prompt.prompt - prompt.done)
        rows = [] if prompt is None else [self._prefill_lane(step, prompt, tokens, published_us)]
        rows += [self._decode_lane(step, request, shape, published_us) for request in decoding]
        for lane, row in enumerate(rows):
            row["lane"] = lane
        self.lanes += rows
        self._commit(step, shape, cost, rows, len(active))
        self.now_us = published_us + GAP_US

    def _shape(self, prompt: Request | None, decoding: list[Request]) -> Row:
        # A mixed graph has a row for its prompt, too.
        lanes = len(decoding) + (prompt is not None and bool(decoding))
        batch = 1 << max(0, lanes - 1).bit_length()
        if prompt is None:
            depth = self.style.draft_depth
            return graph("speculative" if depth else "decode", batch, depth)
        left = min(512, prompt.prompt - prompt.done)
        capacity = max(64, 1 << (left - 1).bit_length())
        return graph("mixed", batch, 0, capacity) if decoding else graph("prefill", 1, 0, capacity)

    def _prefill_lane(self, step: int, request: Request, tokens: int, published_us: int) -> Row:
        request.done += tokens
        emits = request.done == request.prompt
        request.first_commit_us = self.now_us if request.first_commit_us is None else request.first_commit_us
        request.first_step = request.first_step or step
        if emits:
            request.first_output_us, request.first_output_step = published_us, step
            self._made(request, 1, step, published_us)
        return {**self._lane(step, request, published_us, float(emits), int(emits)), **_prompt(tokens, emits)}

    def _decode_lane(self, step: int, request: Request, shape: Row, published_us: int) -> Row:
        offered = int(shape["draft_depth"])
        accepted = 0
        while accepted < offered and self.random.random() < self.style.hit_rate * 0.97**accepted:
            accepted += 1
        expected = 1 + sum(self.style.hit_rate**depth for depth in range(1, offered + 1))
        row = self._lane(step, request, published_us, expected, accepted + 1)
        self._made(request, accepted + 1, step, published_us)
        drafts = {"offered_tokens": offered, "accepted_tokens": accepted}
        source = self.style.source if offered else None
        return row | {"role": "decode", "query_length": offered + 1, "proposal_source": source, **drafts}

    def _made(self, request: Request, tokens: int, step: int, published_us: int) -> None:
        request.made += tokens
        request.output = max(request.output, request.made)
        request.last_output_us, request.last_step = published_us, step

    def _lane(self, step: int, request: Request, published_us: int, expected: float, committed: int) -> Row:
        token_price, delivery_price = self.random.uniform(0.1, 2.0), self.random.uniform(1.0, 30.0)
        age_ms = (self.now_us - (request.last_output_us or request.arrived_us)) / 1e3
        return {
            "step": step,
            "offset_us": self.now_us,
            "request_no": request.number,
            "role": "prefill",
            "prompt_tokens": 0,
            "query_length": 1,
            "ceiling": committed,
            "proposal_source": None,
            "token_price": token_price,
            "delivery_price": delivery_price,
            "age_ms": max(0.0, age_ms),
            "sigma_ms": self.random.uniform(50, 90),
            "expected_tokens": expected,
            "lane_value": (1 + token_price) * expected + delivery_price * min(1.0, expected),
            "offered_tokens": 0,
            "committed_tokens": committed,
            "accepted_tokens": 0,
            "delivered": committed > 0,
            "published_us": published_us if committed else None,
        }

    def _commit(self, step: int, shape: Row, cost: float, rows: list[Row], decoders: int) -> None:
        delivery = sum(row["delivery_price"] * min(1.0, row["expected_tokens"]) for row in rows)
        work = sum(row["lane_value"] for row in rows) + 0.02 * sum(row["prompt_tokens"] for row in rows)
        offered = sum(row["offered_tokens"] for row in rows)
        probe = self.style.probe if step == PROBE_STEP else None
        self.plans.append(
            {
                "step": step,
                "offset_us": self.now_us,
                "cost_ms": cost,
                **shape,
                "reason": probe or "ordinary",
                "token_value": work - delivery,
                "delivery_value": delivery,
                "work": work,
                "wait_cost": 0.05 * len(rows),
                "active_rows": len(rows),
                "active_decoders": decoders,
                "logical_rows": sum(row["query_length"] for row in rows),
                "observation_age_ms": self.random.uniform(100, 4000),
                "margin": self.random.uniform(0.02, 0.6),
                "candidates": self.random.randrange(3, 40),
                "plan_us": self.random.uniform(60, 240),
                "prompt_tokens": sum(row["prompt_tokens"] for row in rows),
                "output_tokens": sum(row["committed_tokens"] for row in rows),
                "offered_tokens": offered,
                "draft_tokens": offered,
                "accepted_tokens": sum(row["accepted_tokens"] for row in rows),
                "deliveries": sum(row["delivered"] for row in rows),
            }
        )
        self._rivals(step, shape, cost, work, [row["request_no"] for row in rows])

    def _rivals(self, step: int, shape: Row, cost: float, work: float, served: list[int]) -> None:
        rivals = [graph("decode", 1), graph("prefill", 1, 0, 64), graph("decode", 2 * max(1, shape["batch_capacity"]))]
        for rank, rival in enumerate([r for r in rivals if r != shape][:2], 1):
            barred = "pruned" if rival["batch_capacity"] > shape["batch_capacity"] else "none"
            share = (0.9 if barred == "pruned" else 0.6) / rank**0.3
            duration = cost_ms(rival)
            self.alternatives.append(
                {
                    "step": step,
                    "offset_us": self.now_us,
                    "rank": rank,
                    **rival,
                    "token_value": 0.7 * work * share * duration / cost,
                    "delivery_value": 0.3 * work * share * duration / cost,
                    "work": work * share * duration / cost,
                    "wait_cost": 0.05,
                    "cost_ms": duration,
                    "active_rows": 1,
                    "request_no": served[0],
                    "barred_by": barred,
                }
            )

    def _request_row(self, request: Request) -> Row:
        assert request.first_commit_us is not None
        assert request.first_output_us is not None
        return {
            "request_no": request.number,
            "arrived_us": request.arrived_us,
            "first_commit_us": request.first_commit_us,
            "first_output_us": request.first_output_us,
            "last_output_us": request.last_output_us,
            "first_step": request.first_step,
            "first_output_step": request.first_output_step,
            "last_step": request.last_step,
            "prompt_tokens": request.prompt,
            "cached_tokens": 0 if request.number % 3 else request.prompt // 4,
            "output_tokens": request.made,
            "max_tokens": 512 if request.number % 2 else request.made,
            "finish_reason": "stop" if request.number % 2 else "length",
            "tokenize_ms": self.random.uniform(0.1, 0.6),
        }


def _prompt(tokens: int, emits: bool) -> Row:
    return {"role": "prefill", "prompt_tokens": tokens, "query_length": tokens, "ceiling": int(emits)}
