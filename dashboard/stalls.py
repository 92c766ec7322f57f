"""Why one request stalled, in one sentence. Pure: a Life in, text out; it claims only what the rows show."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.formatting import count, milliseconds, quantity, words
from dashboard.queries.life import Life, Meanwhile
from dashboard.queries.requests import elapsed_ms
from dashboard.score import Row
from dashboard.sentences import BARRED_WORDS
from dashboard.waits import FIRST, OPEN, PROMPT, RESUMED

# What one request must have of a wait's device time to be named alone.
_MOST_OF_IT = 0.5


def stall_sentence(life: Life) -> str:
    """Why the request waited where it waited longest, or that it never waited long."""
    if not life.waits:
        return _calm(life)
    longest = max(life.waits, key=lambda found: found.wait.ms)
    first_ms = elapsed_ms(life.request["arrived_at"], life.request["first_output_at"])
    early = [found for found in life.waits if found.wait.kind in (FIRST, PROMPT)]
    if early and first_ms is not None and sum(found.wait.ms for found in early) >= longest.wait.ms:
        longest = max(early, key=lambda found: found.wait.ms)
        waited = sum(found.wait.ms for found in early)
        begin = f"Waited {milliseconds(waited)} of the {milliseconds(first_ms)} to its first token"
        if len(early) > 1:
            begin += f", the longest time {milliseconds(longest.wait.ms)}"
    else:
        begin = _begin(life, longest)
    return f"{begin}: {cause(life, longest)}{_policy(life, longest)}."


def _begin(life: Life, found: Meanwhile) -> str:
    wait = found.wait
    ms = milliseconds(wait.ms)
    if wait.kind == OPEN:
        if life.request["finished_at"] is not None:
            return f"Waited {ms} and ended without having been served"
        return f"Has waited {ms} so far" + ("" if wait.after is None else f" since plan {wait.after:,}")
    if wait.kind in (FIRST, PROMPT):
        return f"Waited {ms} for its prompt to be worked on"
    if wait.kind == RESUMED:
        return f"Stood aside for {ms} in the middle of its answer and had to be read in again"
    return f"Waited {ms} between two rounds of its answer, its longest gap"


def cause(life: Life, found: Meanwhile) -> str:
    """What ran in a wait and why that came first."""
    idle_ms = found.idle_ms
    not_taken = _not_taken(life, found)
    if not found.groups:
        return not_taken or "no other plan that is stored ran meanwhile"
    work = f"{milliseconds(_main_ms(found))} of {_main_work(found)}"
    if not_taken is not None:
        return f"{not_taken}; meanwhile {work} ran"
    text = f"{work} {_why_it_won(found)}"
    if idle_ms > found.wait.ms / 2:
        text += f"; for {milliseconds(idle_ms)} no plan ran"
    return text


def _main(found: Meanwhile) -> Row | None:
    """The request that had most of the wait, where one had."""
    first = next(iter(found.served), None)
    if first is None or first["ms"] < found.wait.ms * _MOST_OF_IT:
        return None
    group = found.groups[0]
    alone = group["kind"].endswith("prefill") and first["role"] == "prefill"
    return first if alone else None


def _main_ms(found: Meanwhile) -> float:
    one = _main(found)
    return float(found.groups[0]["ms"] if one is None else one["ms"])


def _main_work(found: Meanwhile) -> str:
    one, group = _main(found), found.groups[0]
    if one is not None:
        return f"{words(group['kind'])} for {one['request_id']} ({_tokens(one['prompt_tokens'])})"
    others = group["requests"]
    whom = f"{count(others)} other request{'' if others == 1 else 's'}" if others else "no other request"
    return f"{words(group['kind'])} in {count(group['plans'])} plan{'' if group['plans'] == 1 else 's'}, for {whom},"


def _tokens(number: int) -> str:
    return f"{number:,} token{'' if number == 1 else 's'}"


def _why_it_won(found: Meanwhile) -> str:
    reason = found.groups[0]["reason"]
    if reason == "discovery":
        return "went first, since its graph had never been measured"
    if reason == "timing_refresh":
        return "measured again how long a graph takes"
    if reason == "acceptance_learning":
        return "learned how often drafts are accepted"
    if reason == "token_budget":
        return "was what the fixed token budget gave"
    return _against(found.rivals)


def _not_taken(life: Life, found: Meanwhile) -> str | None:
    """Where the scheduler had not taken the request yet for most of the wait."""
    if found.wait.kind not in (FIRST, OPEN) or found.wait.after is not None:
        return None
    admitted = life.request["admitted_at"]
    if admitted is not None and (admitted - found.wait.begins) * 2 < found.wait.ends - found.wait.begins:
        return None
    return "this request had not been let in: no slot or not enough memory was free"


def _against(rivals: Sequence[Row]) -> str:
    if not rivals:
        return "ran, and this request was not among the recorded runner-ups"
    free = [row for row in rivals if row["barred_by"] == "none" and row["score_kind"] == row["won_score_kind"]]
    if free:
        row = max(free, key=lambda rival: rival["ms"])
        unit = "per ms" if row["score_kind"] == "rate" else "in all"
        ours, theirs = quantity(row["won_value_rate"]), quantity(row["value_rate"])
        if row["won_value_rate"] == row["value_rate"]:
            return f"was worth as much {unit} ({ours}), and the tie rules decided"
        if row["won_value_rate"] < row["value_rate"]:
            return f"ran although serving this request scored higher {unit} ({theirs} against {ours})"
        return f"was worth more {unit} ({ours} against {theirs})"
    barred = [row for row in rivals if row["barred_by"] != "none"]
    if barred:
        row = max(barred, key=lambda rival: rival["ms"])
        why = BARRED_WORDS.get(row["barred_by"], words(row["barred_by"]))
        return f"ran, since serving this request was barred: {why}"
    return "ran, and serving this request had a score in another unit"


def _policy(life: Life, found: Meanwhile) -> str:
    """The version under which the wait ended, or of the last plan before it."""
    if not found.groups:
        return ""
    fence = found.wait.before if found.wait.before is not None else found.wait.after
    version = next((lane["policy_version"] for lane in life.lanes if lane["fence"] == fence), None)
    return "" if version is None else f"; policy version {version}"


def _calm(life: Life) -> str:
    """For a request without a wait that counts."""
    request = life.request
    first_ms = elapsed_ms(request["arrived_at"], request["first_output_at"])
    if not life.lanes:
        return "No plan that served it is stored, so nothing can be said about its waits."
    if first_ms is None:
        return "It has no token yet and has not waited longer than one of its plans takes."
    text = f"It never waited longer than one of its plans takes: its first token came after {milliseconds(first_ms)}"
    gap = max((gap for _, gap in output_gaps(life.lanes)), default=None)
    return f"{text}." if gap is None else f"{text}, and the longest gap between outputs was {milliseconds(gap)}."


def output_gaps(lanes: Sequence[Row]) -> list[tuple[Row, float]]:
    """Each lane that handed output over after an earlier one did, with the ms between the two."""
    gaps, before = [], None
    for lane in lanes:
        published = lane["published_ns"]
        if published is None:
            continue
        if before is not None:
            gaps.append((lane, (published - before) / 1e6))
        before = published
    return gaps
