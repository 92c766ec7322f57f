"""Policy preferences (S11): the coefficients, their meaning, and the presets."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.errors import InvalidPolicy

NEWCOMER_MEMORIES = ("deprived", "decode", "phase", "fair_share")
PREFILL_CHUNKINGS = ("measured", "deterministic")
SWITCH = ("off", "on")
ACCEPTANCE_MODELS = ("prefix", "pooled")

_NAMES_SHOWN = 8
"""Unknown names listed one by one."""
_LONGEST_NAME_SHOWN = 80
LARGEST_BUDGET = 1 << 20
"""The largest N of the preset `budget:N`."""
_BUDGET = re.compile(r"budget:([1-9]\d{0,6})", re.ASCII)

CoefficientValue = float | int | str


@dataclasses.dataclass(frozen=True, slots=True)
class Coefficient:
    """What an operator needs to know about one coefficient.

    `minimum_excluded`: the value must be above 0, not just at least 0. `choices` is set for textual ones.
    """

    name: str
    meaning: str
    raising: str
    unit: str
    default: CoefficientValue
    minimum_excluded: bool = False
    integer: bool = False
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """The allowed values in words, for error messages and forms."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        number = "a whole number" if self.integer else "a finite number"
        return f"{number} above 0" if self.minimum_excluded else f"{number}, 0 or more"

    def problem(self, value: object) -> str | None:
        """What is wrong with `value`, or None."""
        if self.choices:
            return (
                None if value in self.choices and isinstance(value, str) else f"must be {self.allowed}, not {value!r}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"must be {self.allowed}, not {value!r}"
        try:
            number = float(value)
        except OverflowError:
            return f"must be {self.allowed}, and fit a 64-bit float"
        if not math.isfinite(number) or number < 0 or (self.minimum_excluded and number == 0):
            return f"must be {self.allowed}, not {value!r}"
        if self.integer and (number != int(number) or value >= 2**63):
            return f"must be {self.allowed} below 2**63, not {value!r}"
        return None


COEFFICIENTS: tuple[Coefficient, ...] = (
    Coefficient(
        "output_token_value",
        "What one committed output token is worth, beside 1 for one prompt token.",
        "Running answers go before new prompts more often: their tokens come sooner, and new requests wait longer for "
        "their first token. Lower it for faster first tokens.",
        "prompt tokens",
        64.0,
    ),
    Coefficient(
        "token_fairness",
        "Weight of each request's token rate: the price of a token grows with the time a request has gone without.",
        "Requests that were served little are served sooner, so that fewer are left behind; graphs are chosen less for "
        "their speed, and throughput can fall. At 0 nothing bounds how long a request waits.",
        "value/ms",
        16.0,
    ),
    Coefficient(
        "delivery_fairness",
        "Weight of each stream's delivery rate: one delivery is one visible burst, whatever its length.",
        "Streams advance in step: one token for everybody is preferred to many for a few. At 0 only the number of "
        "tokens counts, and a single stream may pause.",
        "value/ms",
        4.0,
    ),
    Coefficient(
        "decode_age_price",
        "Price of the time since a stream's last visible output; it counts for every stream that runs.",
        "Gaps between tokens shrink, and every new prompt waits for it, short ones too: at 5 instead of 0.1, with "
        "streams running, even short prompts waited 10 to 18 s for their first token. Raise it in small steps.",
        "value/ms²",
        0.1,
    ),
    Coefficient(
        "terminal_value",
        "What retiring one finished request's state is worth.",
        "Finished requests give their memory back sooner, in front of other work.",
        "prompt tokens",
        256.0,
    ),
    Coefficient(
        "terminal_age_price",
        "Price of the time that a finished request waits to be retired.",
        "Retirement is put off less while other work is plentiful, which interrupts that work more often.",
        "value/ms²",
        1.0,
    ),
    Coefficient(
        "adaptation_ms",
        "Time over which service prices follow the service that was really given.",
        "Prices move more slowly: a short wait counts less, and fairness is kept over longer stretches. Lower it, and "
        "the scheduler reacts sooner and swings more.",
        "ms",
        100.0,
        minimum_excluded=True,
    ),
    Coefficient(
        "estimate_ttl_ns",
        "How long a measured graph duration counts as fresh.",
        "Old measurements are trusted longer: less device time goes into measuring again, and a change of the "
        "device's speed is noticed later.",
        "ns",
        30_000_000_000,
        minimum_excluded=True,
        integer=True,
    ),
    Coefficient(
        "adaptive_verification_alpha",
        "Exponent on the estimated chance that a draft prefix is accepted.",
        "Longer drafts look less promising: fewer tokens are guessed ahead, and fewer guesses are thrown away.",
        "1",
        1.0,
        minimum_excluded=True,
    ),
    Coefficient(
        "prefill_chunking",
        "How a prompt is cut into graphs when nothing else competes.",
        "measured: by measured durations; deterministic: whole largest graphs, then the smallest that holds the rest, "
        "so that a prompt is always cut the same way.",
        "name",
        "measured",
        choices=PREFILL_CHUNKINGS,
    ),
    Coefficient(
        "newcomer_memory",
        "Which service history a new request starts with, and so its first price.",
        "deprived: like the longest-waiting resident; decode: like a lone decoder; phase: like its own phase alone; "
        "fair_share: like one of the residents, sharing equally.",
        "name",
        "deprived",
        choices=NEWCOMER_MEMORIES,
    ),
    Coefficient(
        "prompt_wait_price",
        "Price of a millisecond that one waiting prompt waits for its end, over all that must be read before it.",
        "Prompts are read sooner and in larger pieces when several wait, short ones first; running answers pause more. "
        "At 0 prompts are chosen by their own prices alone.",
        "value/ms",
        0.0,
    ),
    Coefficient(
        "prompt_rank_age_ms",
        "Head start in age of every waiting prompt: they are read by (age + this) / tokens left, highest first.",
        "Short prompts go first for longer, and a long one that has waited passes them later. At 0 a new prompt starts "
        "behind all others. Counts only with prompt_wait_price.",
        "ms",
        0.0,
    ),
    Coefficient(
        "decode_gap_weight",
        "How much prompt speed short steps are worth: the gap target is the mixed graph with the most tokens / ms^(1 + "
        "this).",
        "Steps that carry prompts become shorter and gaps between outputs with them; first tokens come later under "
        "load. At 0 the fastest reading of prompts sets the target. Counts only with decode_late_price.",
        "1",
        0.0,
    ),
    Coefficient(
        "decode_late_price",
        "Price of a stream's lateness: it grows with the square of what its gap exceeds the target by.",
        "Gaps beyond the target become rarer, and prompts wait longer for their first token. At 0 no gap is late.",
        "value/ms²",
        0.0,
    ),
    Coefficient(
        "decode_cadence",
        "Whether, while answers run, only graphs compete that serve all of them.",
        "on: no answer pauses for another or for a prompt, and prompts ride along in mixed graphs; off: any graph may "
        "leave answers out.",
        "name",
        "off",
        choices=SWITCH,
    ),
    Coefficient(
        "token_budget",
        "Plans by a fixed token budget, as other servers do, and not by value: all running answers, then prompts in "
        "the order of their arrival, so many tokens a step in all; 0: plans by value.",
        "Steps are longer: first tokens come sooner under load, and gaps between tokens grow. For comparison.",
        "tokens",
        0,
        integer=True,
    ),
    Coefficient(
        "acceptance_model",
        "What a new request's drafts are expected to survive, before its own are verified.",
        "prefix: half at the first draft, half of that at each further one, moved by the confidence of all learned "
        "drafts but by nothing that verification found; pooled: what verification found in all requests, so that deep "
        "drafts are offered from the start where they pay, and none where they do not.",
        "name",
        "prefix",
        choices=ACCEPTANCE_MODELS,
    ),
)
COEFFICIENT_BY_NAME: Mapping[str, Coefficient] = {c.name: c for c in COEFFICIENTS}


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyConfig:
    """One set of preferences. Numbers are finite and at least 0; alpha, adaptation_ms and ttl are above 0.

    Raises InvalidPolicy naming every bad coefficient. Units: see COEFFICIENTS.
    """

    output_token_value: float = 64.0
    token_fairness: float = 16.0
    delivery_fairness: float = 4.0
    decode_age_price: float = 0.1
    terminal_value: float = 256.0
    terminal_age_price: float = 1.0
    adaptation_ms: float = 100.0
    estimate_ttl_ns: int = 30_000_000_000
    adaptive_verification_alpha: float = 1.0
    prefill_chunking: str = "measured"
    newcomer_memory: str = "deprived"
    prompt_wait_price: float = 0.0
    prompt_rank_age_ms: float = 0.0
    decode_gap_weight: float = 0.0
    decode_late_price: float = 0.0
    decode_cadence: str = "off"
    token_budget: int = 0
    acceptance_model: str = "prefix"

    def __post_init__(self) -> None:
        problems = {}
        for coefficient in COEFFICIENTS:
            value = getattr(self, coefficient.name)
            why = coefficient.problem(value)
            if why is not None:
                problems[coefficient.name] = why
            elif not coefficient.choices:
                object.__setattr__(self, coefficient.name, int(value) if coefficient.integer else float(value))
        if problems:
            raise InvalidPolicy(problems)

    @classmethod
    def balanced(cls) -> PolicyConfig:
        """The defaults."""
        return cls()

    @classmethod
    def throughput(cls) -> PolicyConfig:
        """Token throughput first: delivery fairness and the decode age price are 0 (S11)."""
        return cls(delivery_fairness=0.0, decode_age_price=0.0)

    @classmethod
    def interactive(cls) -> PolicyConfig:
        """For people who wait: prompts are read by their waits, late gaps between outputs cost, drafts are pooled."""
        return cls(
            prompt_wait_price=1000.0,
            prompt_rank_age_ms=1000.0,
            decode_gap_weight=0.7,
            decode_late_price=300.0,
            decode_cadence="on",
            acceptance_model="pooled",
        )

    @classmethod
    def preset(cls, name: str) -> PolicyConfig:
        """The preset called `name`: one of PRESETS, or `budget:N`, the defaults with token_budget N.

        Raises InvalidPolicy when there is none.
        """
        if name in PRESETS:
            return PRESETS[name]
        budget = _BUDGET.fullmatch(name)
        if budget is not None and int(budget[1]) <= LARGEST_BUDGET:
            return cls(token_budget=int(budget[1]))
        shown = name if len(name) <= _LONGEST_NAME_SHOWN else f"{name[: _LONGEST_NAME_SHOWN - 1]}…"
        raise InvalidPolicy({"preset": f"must be {PRESET_FORMS}, not {shown!r}"})

    @property
    def preset_name(self) -> str | None:
        """The preset that has exactly these values, or None."""
        named = next((name for name, preset in PRESETS.items() if preset == self), None)
        if named is not None or not 1 <= self.token_budget <= LARGEST_BUDGET:
            return named
        return f"budget:{self.token_budget}" if self == PolicyConfig(token_budget=self.token_budget) else None

    def merged(self, changes: Mapping[str, Any]) -> PolicyConfig:
        """This policy with `changes`; raises InvalidPolicy naming every bad coefficient at once.

        Of unknown names the first few are listed and the rest counted; one problem lists the known names.
        """
        problems = _unknown_names([name for name in changes if name not in COEFFICIENT_BY_NAME])
        for name, coefficient in COEFFICIENT_BY_NAME.items():
            why = coefficient.problem(changes[name]) if name in changes else None
            if why is not None:
                problems[name] = why
        if problems:
            raise InvalidPolicy(problems)
        return dataclasses.replace(self, **changes)

    def as_dict(self) -> dict[str, CoefficientValue]:
        """Coefficient name to value, in the order of COEFFICIENTS."""
        return {c.name: getattr(self, c.name) for c in COEFFICIENTS}


def _unknown_names(names: Sequence[str]) -> dict[str, str]:
    """The problems of names that are no coefficients. Whoever sends them chooses how many and how long they are."""
    shown = [n if len(n) <= _LONGEST_NAME_SHOWN else f"{n[: _LONGEST_NAME_SHOWN - 1]}…" for n in names[:_NAMES_SHOWN]]
    problems = dict.fromkeys(shown, "no such coefficient")
    if shown:
        first = min(shown)  # the message lists problems by name
        problems[first] = f"no such coefficient; the coefficients are {', '.join(COEFFICIENT_BY_NAME)}"
    if len(names) > _NAMES_SHOWN:
        problems["…"] = f"and {len(names) - _NAMES_SHOWN:,} more that are no coefficients"
    return problems


PRESETS: Mapping[str, PolicyConfig] = {
    "balanced": PolicyConfig.balanced(),
    "throughput": PolicyConfig.throughput(),
    "interactive": PolicyConfig.interactive(),
}
PRESET_FORMS = f"one of {', '.join(sorted(PRESETS))}, or budget:N with N from 1 to {LARGEST_BUDGET:,} tokens a step"
"""What a preset may be called, in words."""
