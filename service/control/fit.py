"""Whether a policy gets what it needs from the graphs that a server has prepared."""

from __future__ import annotations

from scheduler.policy import PolicyConfig


def misfit(config: PolicyConfig, *, mixed_prefill: bool) -> str | None:
    """What a policy loses on a server, in one line for people; None where it loses nothing.

    `mixed_prefill`: the server prepared graphs that read a prompt beside running answers. `decode_cadence` and
    `token_budget` choose among these; without them every prompt is read by itself, and all answers wait for it.
    """
    needs = config.decode_cadence == "on" or config.token_budget > 0
    if mixed_prefill or not needs:
        return None
    setting = f"token_budget={config.token_budget}" if config.token_budget else "decode_cadence=on"
    return (
        f"the policy ({config.preset_name or setting}) loses most of its worth here: it reads prompts beside running "
        "answers, and this server prepared no graphs for that. Start it with --mixed-prefill --mixed-prompt-rows 4, or "
        "choose balanced or throughput"
    )
