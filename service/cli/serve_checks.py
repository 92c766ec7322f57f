"""Options of `helios serve` that are each allowed and contradict each other, found before anything is started."""

from __future__ import annotations

from scheduler.capacity import verification_width
from scheduler.simulation.errors import SimulationError
from service.measurements import read_measurements
from service.settings import Settings


def wrong_combination(settings: Settings) -> str | None:
    """One line that says what contradicts what, or None."""
    if settings.protect_metrics and settings.credentials_file is None:
        return "--protect-metrics asks for a key of --credentials-file, and none is given"
    why = _wrong_for_simulated(settings) if settings.device == "simulated" else _for_simulated_only(settings)
    why = why or _without_mixed(settings)
    if why is not None:
        return why
    if settings.draft_tokens == 0:
        return _without_drafts(settings)
    width = verification_width(settings.verification)
    if width > settings.draft_tokens + 1:
        return (
            f"--verification {settings.verification} verifies {width - 1} drafts per request and --draft-tokens is "
            f"{settings.draft_tokens}; raise --draft-tokens or lower N"
        )
    if width > settings.speculative_token_capacity:
        return (
            f"--verification {settings.verification} needs {width} rows for one request and "
            f"--speculative-token-capacity is {settings.speculative_token_capacity}; raise it or lower N"
        )
    if width and settings.draft_allocation == "device":
        return (
            f"--verification {settings.verification} gives every request the same rows and --draft-allocation device "
            "divides them by confidence; use --verification adaptive or another allocation"
        )
    if settings.draft_allocation == "device" and settings.draft_head == "none":
        return (
            "--draft-allocation device divides rows by a draft head's confidence and --draft-head is none; use "
            "--draft-allocation host"
        )
    return None


def wrong_measurements(settings: Settings) -> str | None:
    """What is wrong with the files of a simulated device, or None."""
    if settings.device != "simulated":
        return None
    try:
        read_measurements(settings)
    except SimulationError as error:
        return str(error)
    return None


def _for_simulated_only(settings: Settings) -> str | None:
    given = {
        "--catalog": settings.catalog is not None,
        "--time-scale": settings.time_scale != 1.0,
        "--acceptance": settings.acceptance is not None,
    }
    for option, used in given.items():
        if used:
            return f"{option} is for --device simulated, and --device is {settings.device}"
    return None


def _wrong_for_simulated(settings: Settings) -> str | None:
    """What a device without a model cannot do."""
    if settings.acceptance is not None and settings.draft_tokens == 0:
        return "--acceptance is for speculation, which --draft-tokens of at least 1 turns on"
    if settings.draft_head not in ("auto", "none"):
        return "--draft-head names weights, and a simulated device loads none; --acceptance says what is accepted"
    if settings.draft_allocation == "device":
        return "--draft-allocation device needs a real device; use --draft-allocation host, or none"
    for option, step in _mixed_steps(settings).items():
        if step is not None:
            return f"{option} says what to prepare, and a simulated device has the graphs of --catalog; leave it out"
    if settings.snapshot_rows:
        return "--snapshot-rows is for cached states, and a simulated device has none; leave it out"
    return None


def _mixed_steps(settings: Settings) -> dict[str, int | None]:
    return {"--mixed-batch-step": settings.mixed_batch_step, "--mixed-prompt-step": settings.mixed_prompt_step}


def _without_mixed(settings: Settings) -> str | None:
    """Options that mean nothing without mixed programs."""
    if settings.mixed_prefill:
        return None
    given = {"--mixed-prompt-rows": None if settings.mixed_prompt_rows == 1 else settings.mixed_prompt_rows}
    for option, used in (given | _mixed_steps(settings)).items():
        if used is not None:
            return f"{option} is for programs that serve prompts beside decoding requests; add --mixed-prefill"
    return None


def _without_drafts(settings: Settings) -> str | None:
    """Options that mean nothing without speculation."""
    given = {
        "--verification": settings.verification != "adaptive",
        "--draft-head": settings.draft_head not in ("auto", "none"),
        "--draft-allocation": settings.draft_allocation != "none",
    }
    for option, used in given.items():
        if used:
            return f"{option} is for speculation, which --draft-tokens of at least 1 turns on"
    return None
