"""Prefix reuse: which of a prompt's first tokens are still in the cache when it is admitted."""

from __future__ import annotations

from collections import OrderedDict

from scheduler.simulation.errors import SimulationError
from scheduler.simulation.workload import BLOCK_TOKENS, Arrival


class PrefixCache:
    """What finished requests left behind, forgotten least recently used first beyond a budget of tokens.

    A prompt with block ids reuses its leading blocks that are kept. One that names a prefix (its session or group)
    reuses its shared prefix as far as the last finished request of that name kept it. One that only states a shared
    prefix gets it. At least one prompt token is always computed. `budget_tokens`: None never forgets, 0 keeps nothing.
    """

    def __init__(self, budget_tokens: int | None) -> None:
        if budget_tokens is not None and budget_tokens < 0:
            raise SimulationError(f"the prefix cache holds {budget_tokens} tokens; it must be at least 0")
        self._budget = budget_tokens
        self._kept: OrderedDict[int | str, int] = OrderedDict()
        self._kept_tokens = 0

    def cached_tokens(self, arrival: Arrival) -> int:
        """Tokens of the prompt that need not be computed; what they rest on counts as used now."""
        if self._budget == 0:
            return 0
        if arrival.blocks:
            found = self._leading_blocks(arrival.blocks) * BLOCK_TOKENS
        elif arrival.prefix:
            found = min(arrival.shared_prefix_tokens, self._kept.get(arrival.prefix, 0))
            self._touch(arrival.prefix)
        else:
            found = arrival.shared_prefix_tokens
        return min(found, arrival.prompt_tokens - 1)

    def finished(self, arrival: Arrival) -> None:
        """Keeps what the request's tokens are good for."""
        if arrival.blocks:
            # The last block first, so that a chain is forgotten from its end.
            for block in reversed(arrival.blocks):
                self._keep(block, BLOCK_TOKENS)
        elif arrival.prefix:
            self._keep(arrival.prefix, arrival.prompt_tokens + arrival.output_tokens)
        while self._budget is not None and self._kept_tokens > self._budget:
            _, tokens = self._kept.popitem(last=False)
            self._kept_tokens -= tokens

    def _leading_blocks(self, blocks: tuple[int, ...]) -> int:
        found = 0
        while found < len(blocks) and blocks[found] in self._kept:
            found += 1
        for block in reversed(blocks[:found]):
            self._touch(block)
        return found

    def _touch(self, key: int | str) -> None:
        if key in self._kept:
            self._kept.move_to_end(key)

    def _keep(self, key: int | str, tokens: int) -> None:
        self._kept_tokens += tokens - self._kept.get(key, 0)
        self._kept[key] = tokens
        self._kept.move_to_end(key)
