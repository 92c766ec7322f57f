"""Part of step 3: when missing KV pages keep everything from running, somebody gives theirs back and resumes later.

No thrashing: a preempted request waits at the head of the queue until the pages for all that it and every resident
may still need can be had together (see `admission`, also for who may pass it). After that only requests which came
later can be preempted, so the same one is not preempted over and over.
"""

from __future__ import annotations

from service.engine.core import Core


def make_room(core: Core) -> bool:
    """Preempt one resident if only missing pages keep everything from running; whether another plan is worth a try.

    It retires through a terminal snapshot, which the next plan takes, unless it has computed nothing in this life.
    """
    if not core.grows or core.in_flight:
        return False
    victim = core.scheduler.preemption_victim()
    if victim is None:
        return False
    request = next(request for request in core.table.residents() if request.handle == victim)
    if request.cached_now > request.spec.cached_tokens:
        core.scheduler.preempt(victim)
    else:
        core.scheduler.cancel(victim)
        core.preempted(request)
    return True
