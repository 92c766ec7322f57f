"""The sampler that programs capture gives what the host's gives, whatever else lies in its tensors."""

import numpy as np
import pytest
import torch

from gpu.device import InvalidRequest, SamplingParameters
from gpu.sampling import Purpose, SamplingTable, VerifyLane, draft_sample, uniforms, verify_round
from gpu.sampling.device_philox import device_uniforms
from gpu.sampling.device_sampler import DeviceRound, device_draft_sample, device_verify
from gpu.sampling.device_table import DeviceSamplingTable

VOCAB, LANES, DEPTH = 50, 8, 4
DRAFT_IDS = np.array([0, 2, 3, 5, 8, 13, 21, 22, 23, 34, 49])
PENALISED = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25}
OPTIONS = (
    {"temperature": 0.0},
    {"temperature": 0.0, **PENALISED},
    {"reproducible": True, "top_k": 7},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 1.5, "min_p": 0.1, "logit_bias": ((3, 2.0), (4, -100.0))},
    {"top_k": 5, "top_p": 0.9, **PENALISED},
    {"temperature": 1e-300},
)


def tables(options, prompts, outputs):
    """The same requests, on the host and on the device; the device's last slot stays closed."""
    host, device = SamplingTable(LANES, VOCAB), DeviceSamplingTable(LANES, VOCAB)
    for slot, (chosen, prompt, output) in enumerate(zip(options, prompts, outputs, strict=True)):
        parameters = SamplingParameters(seed=-slot * 2**40 - slot, **chosen)
        host.open(slot, parameters, prompt, output)
        device.open(slot, parameters, prompt, output)
    return host, device


class Rounds:
    """Seeded requests and rounds of ragged drafts; one lane of the device's is unused, and some rows of logits are."""

    def __init__(self, seed, with_ids):
        self.generator = generator = np.random.default_rng(seed)
        options = [OPTIONS[choice] for choice in generator.integers(0, len(OPTIONS), LANES)]
        prompts = [generator.integers(0, VOCAB, 6).tolist() for _ in range(LANES)]
        outputs = [generator.integers(0, VOCAB, 5).tolist() for _ in range(LANES)]
        self.host, self.device = tables(options, prompts, outputs)
        self.ids = DRAFT_IDS if with_ids else np.arange(VOCAB)
        self.draft_token_ids = torch.from_numpy(DRAFT_IDS) if with_ids else None

    def draw(self):
        """(logits with three spare rows, host lanes, device round) of a new round."""
        generator = self.generator
        counts = generator.integers(0, DEPTH + 1, LANES)
        slots = generator.permutation(LANES)
        indices = generator.integers(0, 2**34, LANES)
        copies = generator.random(LANES) < 0.3
        q = generator.random((LANES + 1, DEPTH, len(self.ids))).astype(np.float32) ** 4
        q /= q.sum(axis=2, keepdims=True)
        drafts = self.ids[generator.integers(0, len(self.ids), (LANES + 1, DEPTH))]
        first_rows = np.concatenate(([0], np.cumsum(counts + 1)))
        logits = (generator.normal(size=(first_rows[-1] + 3, VOCAB)) * 2).astype(np.float32)
        logits[generator.random(logits.shape) < 0.1] = -np.inf
        for lane in range(LANES):  # let many drafts be likely, so that rounds go deep
            for depth in range(counts[lane]):
                logits[first_rows[lane] + depth, drafts[lane, depth]] = generator.choice([0.0, 4.0, 9.0])
        named = None if self.draft_token_ids is None else self.ids
        lanes = [
            VerifyLane(
                int(slots[lane]),
                int(first_rows[lane]),
                drafts[lane, : counts[lane]],
                None if copies[lane] else (named, q[lane, : counts[lane]]),
                int(indices[lane]),
            )
            for lane in range(LANES)
        ]
        inputs = DeviceRound(
            slots=torch.tensor([*slots, LANES]),
            first_row=torch.from_numpy(first_rows),
            rows=torch.tensor([*(counts + 1), 0]),
            drafts=torch.from_numpy(drafts),
            indices=torch.tensor([*indices, 0]),
            copies=torch.tensor([*copies, False]),
            q=torch.from_numpy(q),
            draft_token_ids=self.draft_token_ids,
        )
        return logits, lanes, inputs


def assert_same(outcomes, found):
    for lane, outcome in enumerate(outcomes):
        emitted = found.emitted[lane].tolist()
        assert emitted == [*outcome.emitted, *[-1] * (DEPTH + 1 - len(outcome.emitted))]
        assert found.accepted[lane] == outcome.accepted
        assert found.finite[lane] == outcome.finite
        survival = np.full(DEPTH, np.nan)
        survival[: len(outcome.survival)] = outcome.survival
        np.testing.assert_allclose(found.survival[lane], survival, rtol=1e-5, atol=1e-12)
    assert not found.finite[LANES]
    assert (found.emitted[LANES] == -1).all()


def test_numbers_are_the_hosts():
    seeds = [0, 1, 2**64 - 1, 2**63 + 5, 987654321987654321]
    indices = [0, 5, 2**32 - 1, 2**32, 2**50 + 1]
    for purpose in Purpose:
        for index in indices:
            low = torch.tensor([seed % 2**32 for seed in seeds])
            high = torch.tensor([seed // 2**32 for seed in seeds])
            found = device_uniforms(low, high, torch.full_like(low, index), purpose)
            assert found.tolist() == uniforms(seeds, [index] * 5, [purpose] * 5).tolist()


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_rounds_are_the_hosts(seed, with_ids):
    rounds = Rounds(seed, with_ids)
    accepted = 0
    for _ in range(8):
        logits, lanes, inputs = rounds.draw()
        outcomes = verify_round(logits, lanes, rounds.host)
        found = device_verify(torch.from_numpy(logits), inputs, rounds.device)
        assert_same(outcomes, found)
        rounds.device.record(inputs.slots, found.emitted)
        for lane, outcome in zip(lanes, outcomes, strict=True):
            rounds.host.record(lane.slot, outcome.emitted)
            accepted += outcome.accepted
    assert accepted > 10


def test_rows_and_lanes_that_are_not_used_may_hold_anything():
    rounds = Rounds(3, False)
    logits, lanes, inputs = rounds.draw()
    clean = device_verify(torch.from_numpy(logits), inputs, rounds.device)
    before = {name: value.clone() for name, value in vars(rounds.device).items() if isinstance(value, torch.Tensor)}
    logits[-3:] = np.nan
    inputs.q[LANES] = np.nan
    for lane, drafts in enumerate(inputs.rows - 1):
        inputs.q[lane, max(int(drafts), 0) :] = np.nan
    for value in (rounds.device.temperature, rounds.device.top_p):
        value[LANES] = np.nan
        before_last = value.clone()
    poisoned = device_verify(torch.from_numpy(logits), inputs, rounds.device)
    assert_same(verify_round(logits, lanes, rounds.host), poisoned)
    torch.testing.assert_close(poisoned.emitted, clean.emitted)
    torch.testing.assert_close(rounds.device.top_p, before_last, equal_nan=True)
    for name in ("output_counts", "prompt_tokens", "bias", "seed_low"):
        assert torch.equal(getattr(rounds.device, name), before[name])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_fails_its_lane_alone_and_only_where_needed(bad):
    rounds = Rounds(4, True)
    for _ in range(6):
        logits, lanes, inputs = rounds.draw()
        for lane in lanes[::2]:
            row = lane.first_row + rounds.generator.integers(0, len(lane.drafts) + 1)
            logits[row, slice(None) if bad == -np.inf else 7] = bad
        outcomes = verify_round(logits, lanes, rounds.host)
        assert not all(outcome.finite for outcome in outcomes)
        assert_same(outcomes, device_verify(torch.from_numpy(logits), inputs, rounds.device))


def test_lanes_without_drafts_are_plain_draws():
    rounds = Rounds(5, False)
    logits = (rounds.generator.normal(size=(LANES, VOCAB)) * 2).astype(np.float32)
    lanes = [VerifyLane(slot, slot, np.empty(0, dtype=np.int64), None, slot) for slot in range(LANES)]
    order = torch.arange(LANES)
    inputs = DeviceRound(
        slots=order,
        first_row=order,
        rows=torch.ones_like(order),
        drafts=torch.empty((LANES, 0), dtype=torch.int64),
        indices=order,
        copies=torch.zeros(LANES, dtype=torch.bool),
    )
    found = device_verify(torch.from_numpy(logits), inputs, rounds.device)
    expected = [list(outcome.emitted) for outcome in verify_round(logits, lanes, rounds.host)]
    assert found.emitted.tolist() == expected
    assert found.survival.shape == (LANES, 0)


def one_lane(logits, parameters, drafts, q=None):
    """Emitted tokens of one lane [rows, vocab], and its one slot."""
    table = DeviceSamplingTable(1, logits.shape[1])
    table.open(0, parameters, [])
    first = torch.tensor([0])
    inputs = DeviceRound(
        slots=first,
        first_row=first,
        rows=torch.tensor([len(drafts) + 1]),
        drafts=torch.tensor([drafts], dtype=torch.int64),
        indices=first,
        copies=torch.tensor([q is None]),
        q=q,
    )
    return device_verify(torch.from_numpy(logits), inputs, table).emitted[0].tolist()


def test_an_empty_residual_falls_back_to_the_target():
    q = torch.tensor([[[0.6, 0.6]]])  # as rounding may leave it: above p everywhere
    rows = np.zeros((2, 2), dtype=np.float32)
    assert {one_lane(rows, SamplingParameters(seed=seed), [0], q)[0] for seed in range(40)} == {0, 1}


def test_top_k_keeps_the_lower_ids_among_equals_and_top_p_all_of_them():
    rows = np.zeros((1, 300), dtype=np.float32)
    rows[0, 40:] = 3.0
    cut = {one_lane(rows, SamplingParameters(seed=seed, top_k=2), [])[0] for seed in range(40)}
    assert cut == {40, 41}
    rows[0, 43:] = 0.0
    kept = {one_lane(rows, SamplingParameters(seed=seed, top_p=0.01), [])[0] for seed in range(60)}
    assert kept == {40, 41, 42}


def test_drafts_are_the_hosts():
    rounds = Rounds(6, True)
    logits = (rounds.generator.normal(size=(LANES, 11)) * 2).astype(np.float32)
    logits[2, 4] = np.nan
    logits[5, :6] = -np.inf
    for index in (0, 9, 2**33):
        tokens, q = draft_sample(logits, range(LANES), [index] * LANES, rounds.host)
        slots = torch.arange(LANES)
        found, found_q = device_draft_sample(
            torch.from_numpy(logits), slots, torch.full_like(slots, index), rounds.device
        )
        np.testing.assert_array_equal(found, tokens)
        np.testing.assert_allclose(found_q, q, rtol=1e-5, atol=1e-12)


def test_a_slot_is_described_anew():
    table = DeviceSamplingTable(2, VOCAB)
    table.open(1, SamplingParameters(logit_bias=((1, 2.0),), presence_penalty=1.0), [1, 2], [3])
    table.open(1, SamplingParameters(0.0), [4], [])
    assert table.greedy[1]
    assert table.prompt_tokens[1].nonzero().flatten().tolist() == [4]
    assert not table.bias.any()
    assert not table.output_counts.any()


def test_a_table_without_adjustments_refuses_them():
    table = DeviceSamplingTable(2, VOCAB, adjustments=False)
    table.open(0, SamplingParameters(top_k=3), [1])
    for options in ({"logit_bias": ((1, 2.0),)}, {"presence_penalty": 0.1}):
        with pytest.raises(InvalidRequest, match="penalties"):
            table.open(1, SamplingParameters(**options), [1])
    table.record(torch.tensor([0]), torch.tensor([[3]]))


@pytest.mark.parametrize("adjustments", [False, True])
def test_nothing_depends_on_values_so_that_a_graph_can_capture_it(adjustments):
    """Tensors without data fail any operation that would look at it or wait for it."""
    table = DeviceSamplingTable(LANES, VOCAB, "meta", adjustments=adjustments)
    lane = torch.empty(LANES, dtype=torch.int64, device="meta")
    drafts = torch.empty((LANES, DEPTH), dtype=torch.int64, device="meta")
    tokens, q = device_draft_sample(torch.empty((LANES, 11), device="meta"), lane, lane, table)
    inputs = DeviceRound(
        slots=lane,
        first_row=lane,
        rows=lane,
        drafts=drafts,
        indices=lane,
        copies=lane > 0,
        q=q.unsqueeze(1).expand(-1, DEPTH, -1),
        draft_token_ids=tokens.new_empty(11),
    )
    found = device_verify(torch.empty((20, VOCAB), device="meta"), inputs, table)
    table.record(lane, found.emitted)
    assert found.emitted.shape == (LANES, DEPTH + 1)
    assert found.survival.shape == (LANES, DEPTH)
