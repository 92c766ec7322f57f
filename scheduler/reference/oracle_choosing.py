"""Which of the oracle's choices wins: the best of every comparison, padding pruned, bars, then the total order."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.reference.oracle import INFERENCE, PREFILLS, ROUNDS, OracleChoice, OracleState, Share, is_ragged
from scheduler.shapes import GraphKind, GraphShape


def best_of_cases(choices: Iterable[OracleChoice]) -> list[OracleChoice]:
    """The best choice of every comparison: one shape, or pair of shapes, and case."""
    best: dict[tuple[int, int, str], OracleChoice] = {}
    for choice in choices:
        place = choice.position, choice.following, choice.case
        if place not in best or choice.case_key < best[place].case_key:
            best[place] = choice
    return list(best.values())


def best_choice(state: OracleState, choices: Iterable[OracleChoice]) -> OracleChoice | None:
    """The winner of the total order, after padding pruning and bars, among the best choices of every comparison."""
    best = best_of_cases(choices)
    left = [x for x in best if not any(_redundant(state, x, y) for y in best)]
    return min(_kept(state, left) or left, key=lambda choice: choice.key, default=None)


def _kept(state: OracleState, choices: list[OracleChoice]) -> list[OracleChoice]:
    """What decode_cadence or a token budget leaves of the choices."""
    policy = state.policy
    if policy.decode_cadence == "off" and not policy.token_budget:
        return choices
    found = [choice for choice in choices if not _leaves_an_answer_out(state, choice)]
    if not policy.token_budget:
        return found
    kinds = [state.shapes[choice.position].kind for choice in found]
    found = [
        choice
        for choice, kind in zip(found, kinds, strict=True)
        if kind is not GraphKind.PREFILL or _prompt_tokens(choice) <= state.prompt_limit
    ]
    most = max((_prompt_tokens(choice) for choice in found if _stands_alone(state, choice)), default=0)
    return [choice for choice in found if not _stands_alone(state, choice) or _prompt_tokens(choice) == most]


def _leaves_an_answer_out(state: OracleState, choice: OracleChoice) -> bool:
    """Some decoding request has no row, though a measured graph would have had one for each (beside a prompt)."""
    kind, answers = state.shapes[choice.position].kind, len(state.in_stage("decode"))
    prompts = bool(_prompt_tokens(choice))
    served = 0 if kind in PREFILLS else sum(not share.prompt for share in choice.lanes)
    if not _stands_alone(state, choice) or kind is GraphKind.SCORED_PREFILL or served == answers:
        return False
    for shape, _ in state.measured:
        if prompts and shape.kind is GraphKind.MIXED and shape.batch_capacity >= answers + 1:
            return True
        rows = shape.target_rows if is_ragged(shape) else answers
        if not prompts and shape.kind in (*ROUNDS, GraphKind.MIXED) and min(shape.batch_capacity, rows) >= answers:
            return True
    return False


def _stands_alone(state: OracleState, choice: OracleChoice) -> bool:
    return state.shapes[choice.position].kind in INFERENCE and choice.following < 0


def _prompt_tokens(choice: OracleChoice) -> int:
    return sum(share.prompt for share in choice.lanes)


def _redundant(state: OracleState, x: OracleChoice, y: OracleChoice) -> bool:
    """`y` does the work of `x` in a smaller graph (S4)."""
    first = state.shapes[x.position]
    if (
        first.kind in PREFILLS
        or _work(x.lanes) != _work(y.lanes)
        or _work(x.following_lanes) != _work(y.following_lanes)
    ):
        return False
    if x.following == y.following:
        return _smaller(first, state.shapes[y.position])
    if x.position != y.position or x.following < 0 or y.following < 0:
        return False
    following = state.shapes[x.following]
    return following.kind not in PREFILLS and _smaller(following, state.shapes[y.following])


def _smaller(x: GraphShape, y: GraphShape) -> bool:
    same = (x.kind, x.draft_depth, x.allocation) == (y.kind, y.draft_depth, y.allocation)
    sizes = [
        (y.batch_capacity, x.batch_capacity),
        (y.target_width, x.target_width),
        (y.target_rows, x.target_rows),
        (y.prefill_capacity, x.prefill_capacity),
        (y.prompt_rows, x.prompt_rows),
    ]
    return same and all(a <= b for a, b in sizes) and any(a < b for a, b in sizes)


def _work(shares: tuple[Share, ...]) -> set[tuple[int, int, int]]:
    return {(share.request.slot, share.rows, share.prompt) for share in shares}
