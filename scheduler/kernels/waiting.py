"""The order in which prompts are read, where the policy has one, and what waiting for them costs (S4)."""

from __future__ import annotations

from collections import namedtuple

from scheduler import layout
from scheduler.kernels.context import RANK, WAITING, WAITING_LEFT, elapsed_ms, is_runnable
from scheduler.kernels.family import reading_family, reading_ms
from scheduler.kernels.jit import allocating, inlined, inner

# Every waiting prompt of one decision. slots [W]: in the order where there is one, else in slot order; left [W]: prompt
# tokens that each has left; family: the graphs that they wait for; phi: the waiting that lies ahead, ms.
Waiting = namedtuple("Waiting", "slots left family phi")


@inlined
def is_ordered(policy):
    """Whether prompts have one order for all graphs: by arrival under a token budget, else by rank."""
    return policy["token_budget"] > 0 or policy["prompt_wait_price"] > 0.0


@inlined
def _waits(slot):
    """A request whose prompt is not whole and that will go on reading it."""
    return (
        is_runnable(slot)
        and slot["stage"] != layout.TERMINAL
        and slot["retiring"] == 0
        and slot["consumed"] < slot["prompt_tokens"]
    )


@allocating
def collect_waiting(world):
    """The waiting prompts, with what the price of waiting needs."""
    slots, left, count = world.scratch[WAITING], world.scratch[WAITING_LEFT], 0
    for i in range(len(world.slots)):
        if _waits(world.slots[i]):
            slots[count] = i
            count += 1
    if is_ordered(world.policy[0]):
        _sort(world, slots[:count], world.amounts[RANK])
    for j in range(count):
        state = world.slots[slots[j]]
        left[j] = state["prompt_tokens"] - state["consumed"]
    family = reading_family(world)
    phi = 0.0
    if world.policy[0]["prompt_wait_price"] > 0.0:
        phi = _phi(Waiting(slots[:count], left[:count], family, 0.0), slots, left, 0)
    return Waiting(slots[:count], left[:count], family, phi)


@inner
def _sort(world, slots, rank):
    """By rank descending, then by arrival and admission; under a token budget by arrival and admission alone."""
    for i in range(len(slots)):
        state = world.slots[slots[i]]
        rank[slots[i]] = 0.0
        if world.policy[0]["token_budget"] == 0:
            age_ms = elapsed_ms(world.decision[0]["start_ns"], state["arrived_ns"])
            left = state["prompt_tokens"] - state["consumed"]
            rank[slots[i]] = (age_ms + world.policy[0]["prompt_rank_age_ms"]) / left
    for i in range(1, len(slots)):
        slot, j = slots[i], i
        while j > 0 and _comes_before(world, rank, slot, slots[j - 1]):
            slots[j] = slots[j - 1]
            j -= 1
        slots[j] = slot


@inlined
def _comes_before(world, rank, a, b):
    if rank[a] != rank[b]:
        return rank[a] > rank[b]
    if world.slots[a]["arrived_ns"] != world.slots[b]["arrived_ns"]:
        return world.slots[a]["arrived_ns"] < world.slots[b]["arrived_ns"]
    return world.slots[a]["admitted"] < world.slots[b]["admitted"]


@inner
def wait_relief(world, waiting, slots, tokens, count):
    """prompt_wait_relief of a candidate whose prompts are slots[:count], in the order, and consume tokens[:count]."""
    if world.policy[0]["prompt_wait_price"] == 0.0 or count == 0:
        return 0.0
    after = _phi(waiting, slots, tokens, count)
    return world.decision[0]["prompt_wait_price"] * (waiting.phi - after)


@inner
def _phi(waiting, slots, tokens, count):
    """The sum of rho over the waiting prompts that are not whole after slots[:count] have consumed tokens[:count]."""
    family = waiting.family
    if len(family.ms) == 0:
        return 0.0
    total, ahead, k = 0.0, 0, 0
    for j in range(len(waiting.slots)):
        left = waiting.left[j]
        if k < count and waiting.slots[j] == slots[k]:
            left -= tokens[k]
            k += 1
        if left > 0:
            ahead += left
            total += reading_ms(family, ahead)
    return total
