"""The list of checks that need no scheduler."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence

import torch

from gpu.cuda.availability import find_cuda
from gpu.selfcheck.allocation import allocation_parity
from gpu.selfcheck.devices import every_kind
from gpu.selfcheck.environment import versions
from gpu.selfcheck.host import Form
from gpu.selfcheck.models import choose_subject, tiny_config, write_random_model
from gpu.selfcheck.numerics import (
    captured_form,
    greedy_speculation,
    logits_parity,
    several_prompts,
    untouched_memory,
)
from gpu.selfcheck.outcome import NamedCheck
from gpu.selfcheck.timing import replay_against_eager

_TOKENS = {"cpu": 24, "cuda": 64}
_ALLOCATIONS = {"cpu": 300, "cuda": 2000}


def find_place(device: str) -> torch.device:
    """The device to check, cpu or cuda. Raises DeviceUnavailable."""
    return find_cuda() if device == "cuda" else torch.device("cpu")


def program_checks(device: str, folder: pathlib.Path) -> Sequence[NamedCheck]:
    """Checks of programs, memory and allocation; models that they need are written below `folder`.

    Raises DeviceUnavailable.
    """
    place = find_place(device)
    served = Form(place, captured=device == "cuda")
    subject = choose_subject(folder / "subject")
    tiny = write_random_model(folder / "tiny", tiny_config())
    tokens = _TOKENS[device]
    run = functools.partial
    return (
        NamedCheck("versions", run(versions, place)),
        NamedCheck("logits against the reference", run(logits_parity, tiny, served)),
        NamedCheck("greedy speculation is plain decoding", run(greedy_speculation, subject, served, tokens)),
        NamedCheck("poisoned buffers", run(untouched_memory, subject, served)),
        NamedCheck("several prompts in one program", run(several_prompts, subject, served)),
        NamedCheck("captured form is the eager form", run(captured_form, subject, served, tokens // 2)),
        NamedCheck("every kind of program runs", run(every_kind, subject, device)),
        NamedCheck("row allocation against the reference", run(allocation_parity, place, _ALLOCATIONS[device])),
        NamedCheck("replay against eager", run(replay_against_eager, tiny, served)),
    )
