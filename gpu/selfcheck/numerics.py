"""Checks of what programs compute: logits, speculation, memory that they must leave alone."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np
import torch

from gpu.copies import CopyIndex
from gpu.model.weights import open_source
from gpu.pages import PAGE_TOKENS
from gpu.programs.interface import LaneInput
from gpu.reference.forward import sequence_logits
from gpu.selfcheck.host import SLOTS, Form, ProgramHost, generating
from gpu.selfcheck.models import Subject
from gpu.selfcheck.outcome import CheckFailed
from scheduler.shapes import GraphKind, GraphShape

DEPTH = 3
_TOLERANCE = 1e-3
_TEXTS = (
    b"the cat sat on the mat and the cat sat on the mat and ",
    b"one two three four one two three four one two ",
    b"To be, or not to be, that is the question: ",
)


def logits_parity(path: pathlib.Path, form: Form) -> str:
    """Prefill in two chunks, then decode: the logits are those of a plain pass over the whole sequence."""
    host = ProgramHost(path, None, form)
    prompt = [token % host.config.vocab_size for token in range(3, 3 + 41 * 7, 7)]
    prefill = GraphShape(GraphKind.PREFILL, 1, prefill_capacity=64)
    host.open(1, prompt)
    found = []
    for start, end in ((0, 17), (17, len(prompt))):
        host.prefill(1, start, end)
        found.append((end, host.logits(prefill)[0]))
    for _ in range(6):
        host.run(generating(2, 0), LaneInput(1))
        found.append((len(prompt) + len(host.outputs[1]) - 1, host.logits(generating(2, 0))[0]))
    expected = sequence_logits(open_source(path), prompt + host.outputs[1])
    worst = max(float((logits - expected[length - 1]).abs().max()) for length, logits in found)
    if not worst <= _TOLERANCE:
        raise CheckFailed(f"logits differ by up to {worst:.1e} from the reference; {_TOLERANCE:.0e} is allowed")
    return f"largest difference {worst:.1e} after {len(found)} lengths"


def greedy_speculation(subject: Subject, form: Form, tokens: int) -> str:
    """Rounds with learned drafts and with copies emit what plain decoding emits."""
    host = ProgramHost(subject.path, subject.head, form)
    plain = generate(host, 0, tokens, copies=False)
    found = []
    sources = ((True, "copies"), (False, "learned drafts")) if host.has_head else ((True, "copies"),)
    for copies, name in sources:
        rounds = generate(host, DEPTH, tokens, copies)
        if rounds.outputs != plain.outputs:
            raise CheckFailed(f"with {name} the tokens are others than those of plain decoding")
        found.append(f"{rounds.accepted / rounds.lanes:.2f} accepted per round with {name}")
    return f"{len(_TEXTS)} × {tokens} tokens equal; {', '.join(found)}"


class Generated:
    """Tokens of each request, and how many drafts were accepted in how many lanes of rounds."""

    def __init__(self) -> None:
        self.outputs: list[list[int]] = []
        self.accepted = 0
        self.lanes = 0


def generate(host: ProgramHost, depth: int, tokens: int, copies: bool) -> Generated:
    """`tokens` tokens of each text's continuation, all requests in one program."""
    result = Generated()
    for slot, text in enumerate(_TEXTS):
        host.open(slot, [byte % host.config.vocab_size for byte in text])
        host.prefill(slot, 0, len(text))
    shape = generating(SLOTS, depth)
    while any(len(host.outputs[slot]) < tokens for slot in range(len(_TEXTS))):
        output = host.run(shape, *(_lane(host, slot, depth, copies) for slot in range(len(_TEXTS))))
        result.accepted += sum(lane.accepted for lane in output.lanes)
        result.lanes += len(output.lanes)
    result.outputs = [host.outputs[slot][:tokens] for slot in range(len(_TEXTS))]
    return result


def untouched_memory(subject: Subject, form: Form) -> str:
    """Everything that belongs to nobody in a run is NaN before it, and neither read nor written by it."""
    clean, poisoned = (ProgramHost(subject.path, subject.head, form) for _ in range(2))
    for host in (clean, poisoned):
        host.open(2, [byte % host.config.vocab_size for byte in _TEXTS[0]])
    rows = _poison(poisoned)
    mixed = GraphShape(
        GraphKind.MIXED, 2, draft_depth=DEPTH, target_width=DEPTH + 1, prefill_capacity=64, speculation_enabled=True
    )
    copies = np.array([1, 2, 3], dtype=np.int64)
    for host in (clean, poisoned):
        host.prefill(2, 0, 20)
        tokens = np.array(host.prompts[2][20:], dtype=np.int64)
        host.run(mixed, LaneInput(2, tokens))
        host.run(generating(4, 0), LaneInput(2))
        host.run(generating(4, DEPTH), LaneInput(2, rows=DEPTH + 1, copies=None if host.has_head else copies))
    if clean.outputs[2] != poisoned.outputs[2]:
        raise CheckFailed("a program read memory of other requests: its tokens changed when that became NaN")
    memories = (*poisoned.context.cache.keys, *poisoned.context.cache.values)
    if not all(bool(memory.index_select(0, rows).isnan().all()) for memory in memories):
        raise CheckFailed("a program wrote into KV pages of other requests")
    return f"{len(poisoned.outputs[2])} tokens equal with {len(rows)} KV rows poisoned in {len(memories)} tensors"


def several_prompts(subject: Subject, form: Form) -> str:
    """Two prompts and a drafting request in one mixed program: the tokens of each are those that it gets alone."""
    together, apart = (ProgramHost(subject.path, subject.head, form) for _ in range(2))
    lengths = [len(text) for text in _TEXTS]
    for host in (together, apart):
        for slot, text in enumerate(_TEXTS):
            host.open(slot, [byte % host.config.vocab_size for byte in text])
        host.prefill(0, 0, 5)
        host.prefill(2, 0, lengths[2])
    mixed = GraphShape(
        GraphKind.MIXED,
        4,
        draft_depth=DEPTH,
        target_width=DEPTH + 1,
        prefill_capacity=128,
        speculation_enabled=True,
        prompt_rows=2,
    )
    prompts = [np.array(together.prompts[slot], dtype=np.int64) for slot in (0, 1)]
    drafting = _lane(together, 2, DEPTH, copies=not together.has_head)
    together.run(mixed, LaneInput(1, prompts[1]), drafting, LaneInput(0, prompts[0][5:]))
    apart.prefill(0, 5, lengths[0])
    apart.prefill(1, 0, lengths[1])
    apart.run(generating(1, DEPTH), drafting)
    for host in (together, apart):
        for _ in range(4):
            host.run(generating(4, 0), *(LaneInput(slot) for slot in range(3)))
    if together.outputs != apart.outputs:
        raise CheckFailed("prompts that share a mixed program get other tokens than those that are read alone")
    return f"{sum(map(len, together.outputs.values()))} tokens equal after a mixed program with two prompts"


def captured_form(subject: Subject, form: Form, tokens: int) -> str:
    """Programs in the form that is recorded give the tokens of the eager form."""
    for depth in (0, DEPTH):
        eager, captured = (
            generate(
                ProgramHost(subject.path, subject.head, Form(form.place, graph)), depth, tokens, subject.head is None
            )
            for graph in (False, True)
        )
        if eager.outputs != captured.outputs:
            raise CheckFailed(f"with {depth} drafts the captured form emits other tokens than the eager one")
    return f"2 × {len(_TEXTS)} × {tokens} tokens equal"


def _lane(host: ProgramHost, slot: int, depth: int, copies: bool) -> LaneInput:
    if not copies or not depth:
        return LaneInput(slot, rows=depth + 1)
    proposals = CopyIndex(host.prompts[slot] + host.outputs[slot]).propose(depth)
    return LaneInput(slot, rows=1 + len(proposals), copies=np.array(proposals, dtype=np.int64))


def _poison(host: ProgramHost) -> torch.Tensor:
    """Fill pages of all slots but 2, and the end of slot 2's, with NaN; returns these KV rows."""
    pages: Sequence[int] = [page for slot in (0, 1, 3) for page in host.pages_of(slot)] + host.pages_of(2)[-1:]
    state, cache = host.context.state, host.context.cache
    with host.stream.current():
        first = torch.tensor(pages, device=state.device)[:, None] * PAGE_TOKENS
        rows = (first + torch.arange(PAGE_TOKENS, device=state.device)).view(-1)
        for memory in (*cache.keys, *cache.values):
            memory.index_fill_(0, rows, torch.nan)
        state.last_hidden[torch.tensor([0, 1, 3], device=state.device)] = torch.nan
    return rows
