"""Each of the self-check's checks notices the mistake that it is there for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from gpu.model import weights
from gpu.programs import host_rows, rows
from gpu.programs.lanes import LaneBuffers
from gpu.selfcheck import allocation, devices, models, numerics, timing
from gpu.selfcheck.host import Form
from gpu.selfcheck.outcome import CheckFailed, CheckSkipped, NamedCheck, Status, carry_out

CPU = torch.device("cpu")
EAGER, CAPTURED = Form(CPU, captured=False), Form(CPU, captured=True)


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    return models.write_random_model(tmp_path_factory.mktemp("random"), models.tiny_config())


@pytest.fixture
def subject(tmp_path):
    return models.choose_subject(tmp_path)


def unturned(cosines, sines):
    """Tables that rotate nothing."""
    return torch.ones_like(cosines), torch.zeros_like(sines)


@pytest.mark.parametrize("form", [EAGER, CAPTURED])
def test_wrong_rotations_show_in_the_logits(random_model, form, monkeypatch):
    assert "largest difference" in numerics.logits_parity(random_model, form)
    tables = weights.position_tables
    monkeypatch.setattr(weights, "position_tables", lambda *extents: unturned(*tables(*extents)))
    with pytest.raises(CheckFailed, match="logits differ"):
        numerics.logits_parity(random_model, form)


def test_accepting_wrong_drafts_shows_in_the_tokens(subject, monkeypatch):
    assert subject.head is not None, "the byte model's draft head is shipped"
    assert "learned drafts" in numerics.greedy_speculation(subject, EAGER, 8)
    from gpu.programs import host_sampler

    verify = host_sampler.verify_round

    def accept_all(logits, lanes, table):
        outcomes = verify(logits, lanes, table)
        pairs = zip(outcomes, lanes, strict=True)
        return [
            dataclasses.replace(outcome, emitted=(*lane.drafts.tolist(), outcome.emitted[-1]))
            for outcome, lane in pairs
        ]

    monkeypatch.setattr(host_sampler, "verify_round", accept_all)
    with pytest.raises(CheckFailed, match="with copies the tokens are others"):
        numerics.greedy_speculation(subject, EAGER, 8)


def test_reading_memory_of_others_shows(random_model, monkeypatch):
    subject = models.Subject(random_model, None)
    assert "poisoned" in numerics.untouched_memory(subject, EAGER)

    def read_all(pages, last_positions):
        return (pages[:, :, None] * 16 + torch.arange(16)).flatten(1)

    monkeypatch.setattr("gpu.programs.attention.read_rows", read_all)
    with pytest.raises(CheckFailed, match="not finite"):
        numerics.untouched_memory(subject, CAPTURED)


@pytest.mark.parametrize("form", [EAGER, CAPTURED])
def test_prompts_that_read_each_others_tokens_show(random_model, monkeypatch, form):
    subject = models.Subject(random_model, None)
    assert "two prompts" in numerics.several_prompts(subject, form)
    stage = LaneBuffers.stage

    def forgetful(self, lanes):
        turn = stage(self, lanes)
        for starts in (self.prompt_starts, self.host_prompt_starts):
            starts[:] = 0
        for copy in self._copies_in_turn:
            copy[len(copy) - len(self.prefill_rows) - self.capacity : len(copy) - len(self.prefill_rows)] = 0
        return turn

    monkeypatch.setattr(LaneBuffers, "stage", forgetful)
    with pytest.raises(CheckFailed, match="other tokens than those that are read alone"):
        numerics.several_prompts(subject, form)


@pytest.mark.parametrize(
    ("form", "module", "name", "where"),
    [(EAGER, host_rows, "host_kv_rows", np.where), (CAPTURED, rows, "kv_rows", torch.where)],
)
def test_writing_to_memory_of_others_shows(random_model, monkeypatch, form, module, name, where):
    kv_rows = getattr(module, name)

    def astray(state, slots, positions, valid):
        return where(valid, kv_rows(state, slots, positions, valid), 16)

    monkeypatch.setattr(module, name, astray)
    with pytest.raises(CheckFailed, match="wrote into KV pages of other requests"):
        numerics.untouched_memory(models.Subject(random_model, None), form)


def test_a_captured_form_that_computes_something_else_shows(random_model, monkeypatch):
    subject = models.Subject(random_model, None)
    assert "tokens equal" in numerics.captured_form(subject, EAGER, 6)
    from gpu.programs import device_sampler

    verify = device_sampler.device_verify
    monkeypatch.setattr(
        device_sampler,
        "device_verify",
        lambda *given: dataclasses.replace(outcome := verify(*given), emitted=outcome.emitted.clamp(max=100)),
    )
    with pytest.raises(CheckFailed, match="the captured form emits other tokens"):
        numerics.captured_form(subject, EAGER, 6)


def test_a_program_that_fails_shows(random_model, monkeypatch):
    subject = models.Subject(random_model, None)
    assert "8 kinds" in devices.every_kind(subject, "cpu")
    from gpu.programs.state_copies import CopyProgram

    run = CopyProgram.run

    def fail(self, copies):
        if copies:
            raise RuntimeError("illegal address")
        run(self, copies)

    monkeypatch.setattr(CopyProgram, "run", fail)
    with pytest.raises(CheckFailed, match="illegal address"):
        devices.every_kind(subject, "cpu")


def test_rows_for_the_wrong_lanes_show(monkeypatch):
    assert "torch operations" in allocation.allocation_parity(CPU, 40)

    def first_come(joint, limits, slots, target_rows, rows):
        rows.copy_((limits > 0).long())
        rows[0] += target_rows - rows.sum()

    monkeypatch.setattr(allocation, "create_allocator", lambda place: first_come)
    with pytest.raises(CheckFailed, match="got other rows"):
        allocation.allocation_parity(CPU, 40)


def test_without_graphs_there_is_nothing_to_time(random_model):
    with pytest.raises(CheckSkipped):
        timing.replay_against_eager(random_model, EAGER)


def test_every_end_of_a_check_is_an_outcome():
    def end(error):
        def check() -> str:
            raise error

        return carry_out(NamedCheck("n", check))

    assert carry_out(NamedCheck("n", lambda: "two\n lines")).detail == "two lines"
    assert end(CheckFailed("wrong")).status is Status.FAILED
    assert end(CheckSkipped("none")).status is Status.SKIPPED
    unexpected = end(RuntimeError("CUDA error"))
    assert (unexpected.status, unexpected.detail) == (Status.FAILED, "RuntimeError: CUDA error")


def test_without_the_shipped_model_a_random_one_is_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "BYTE_MODEL", tmp_path / "none")
    subject = models.choose_subject(tmp_path / "made")
    assert subject.head is None
    assert "with copies" in numerics.greedy_speculation(subject, EAGER, 6)
