"""The training scripts from text to figures, at sizes that take seconds; and the arithmetic of their measurements."""

import dataclasses
import itertools
import json
import re
import sys

import pytest
import torch
from safetensors import safe_open

from gpu.model.draft_head import load_draft_head
from gpu.model.weights import load_model, open_source
from gpu.reference.forward import sequence_logits
from gpu.training import byte_model, draft_head, generate, measure_acceptance
from gpu.training.acceptance import (
    DraftedText,
    accepted_per_round,
    calibration,
    calibration_error,
    copied_text,
    draft_text,
)
from gpu.training.byte_model import BYTE_MODEL, split_text, train_byte_model, write_checkpoint
from gpu.training.byte_tokenizer import byte_characters
from gpu.training.chat_prompts import TASKS, TOPICS, chat_prompts
from gpu.training.chat_tokenizer import chat_token_ids, smollm2_tokenizer
from gpu.training.draft_module import DraftModule
from gpu.training.draft_training import freeze_target, frequent_tokens
from gpu.training.generation import GenerationLimits, Prompt, sample_tokens
from gpu.training.head_files import store_figures, weights_sha256, write_draft_head
from gpu.training.rounds import SpeculativeSequence
from gpu.training.samples import Sample, read_samples, write_shard
from gpu.training.sequences import SequenceBatch
from service.model_source import resolve_model
from service.text.loading import load_text_model

TINY = dataclasses.replace(
    BYTE_MODEL, hidden_size=32, intermediate_size=32, layers=1, heads=2, kv_heads=1, head_dim=16, context_tokens=128
)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("To be, or not to be: that is the question.\n" * 60)
    return path


@pytest.fixture
def checkpoint(text, tmp_path):
    """A byte-level model of the text, after a few steps."""
    training, _ = split_text(text)
    *_, (_, _, model) = train_byte_model(training, TINY, steps=12, step_tokens=256, seed=1)
    write_checkpoint(model, tmp_path / "byte")
    return tmp_path / "byte"


def run(module, monkeypatch, **options):
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    monkeypatch.setattr(sys, "argv", [module.__name__, *words])
    module.main()


def test_from_text_to_figures(text, checkpoint, tmp_path, monkeypatch, capsys):
    samples, head = tmp_path / "samples", tmp_path / "head.safetensors"
    settings = {"model": checkpoint, "samples": samples}
    run(generate, monkeypatch, kind="text", model=checkpoint, text=text, output=samples, tokens=400, rows=8,
        answer_tokens=24)  # fmt: skip
    run(draft_head, monkeypatch, **settings, name="byte", output=head, intermediate_size=24, steps=6, depths=3)
    run(
        draft_head,
        monkeypatch,
        **settings,
        name="byte",
        output=head,
        start_from=head,
        steps=1,
        depths=2,
        input_noise=0.2,
    )
    run(measure_acceptance, monkeypatch, **settings, head=head, most_texts=8, rounds=1,
        output_tokens=24)  # fmt: skip
    assert "complete rounds, greedy, 1 texts: D=1" in capsys.readouterr().out
    model = load_model(open_source(checkpoint), torch.float32, 64)
    loaded = load_draft_head(head, model, target_sha256=weights_sha256(checkpoint))
    assert loaded.config.intermediate_size == 24
    figures = {"greedy": {"D=1": 0.5}}
    store_figures(head, figures)
    with safe_open(head, framework="pt") as file:
        assert json.loads(file.metadata()["figures"]) == figures
        assert re.search("unrolled 3 deep.*; then .*unrolled 2 deep", file.metadata()["recipe"])


def test_training_the_byte_model_twice_gives_the_same_weights_and_learns(text, monkeypatch):
    training, held_out = split_text(text)
    assert len(training) + len(held_out) == text.stat().st_size
    runs = [list(train_byte_model(training, TINY, steps=12, step_tokens=256, seed=3)) for _ in range(2)]
    first, second = (outcome[-1][2].state_dict() for outcome in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert runs[0][-1][1] < runs[0][0][1] - 0.2
    assert byte_model.held_out_loss(runs[0][-1][2], held_out) < runs[0][0][1]


def test_the_byte_tokenizer_returns_every_text(checkpoint):
    text_model = load_text_model(resolve_model(str(checkpoint)))
    text = "".join(map(chr, [*range(0x300), 0x65E5, 0x1F600])) + " \r\n\t don't  x"
    ids = text_model.encode(text, add_special_tokens=True)
    assert ids == list(text.encode("utf-8"))
    assert text_model.decode(ids) == text
    assert text_model.stop_token_ids == (256,)
    assert len(set(byte_characters())) == 256
    assert text_model.render_chat([{"role": "user", "content": "hi"}]) == "user: hi\nassistant: "


def test_generated_samples_hold_the_targets_own_states_and_choices(checkpoint):
    source = open_source(checkpoint)
    model = load_model(source, torch.float32, 64)
    prompts = [Prompt(tuple(b"To be, or not"[: 5 + n]), 0.0, is_held_out=n == 0) for n in range(5)]
    limits = GenerationLimits(rows=2, prompt_tokens=9, answer_tokens=10, end_ids=frozenset({ord("q")}))
    with torch.inference_mode():
        samples = list(generate.generate(model, prompts, limits, seed=1))
    assert len(samples) == 5
    for sample in samples:
        ids = sample.token_ids.tolist()
        prompt = next(prompt for prompt in prompts if len(prompt.token_ids) == sample.prompt_tokens)
        assert tuple(ids[: sample.prompt_tokens]) == prompt.token_ids
        assert sample.is_held_out == prompt.is_held_out
        scores = sequence_logits(source, ids)
        answer = range(sample.prompt_tokens, len(ids))
        assert [int(scores[place - 1].argmax()) for place in answer] == ids[sample.prompt_tokens :]
        assert torch.allclose(sample.log_totals[answer], scores[answer].logsumexp(-1), atol=1e-3)
        norm = torch.nn.functional.rms_norm(sample.hidden.float(), (32,), model.final_norm, TINY.norm_epsilon)
        assert torch.allclose(norm @ source.tensor("model.embed_tokens.weight").float().T, scores, atol=2e-2)
        assert len(ids) == sample.prompt_tokens + 10 or int(scores[-1].argmax()) == ord("q")


def test_prompts_that_are_too_long_are_left_out(checkpoint):
    model = load_model(open_source(checkpoint), torch.float32, 64)
    prompts = [Prompt((1,) * length, 1.0, False) for length in (3, 9, 4)]
    limits = GenerationLimits(rows=4, prompt_tokens=5, answer_tokens=3, end_ids=frozenset())
    with torch.inference_mode():
        samples = list(generate.generate(model, prompts, limits, seed=1))
    assert sorted(sample.prompt_tokens for sample in samples) == [3, 4]


def test_sampled_tokens_follow_the_softmax():
    generator = torch.Generator().manual_seed(0)
    scores = torch.tensor([[0.0, 1.0, -1.0]]).expand(4000, -1)
    drawn = torch.bincount(sample_tokens(scores, torch.full((4000,), 2.0), generator), minlength=3) / 4000
    assert torch.allclose(drawn, (scores[0] / 2.0).softmax(-1), atol=0.03)
    assert set(sample_tokens(scores, torch.zeros(4000), generator).tolist()) == {1}


def make_sample(ids, prompt_tokens=2, temperature=0.0):
    count = len(ids)
    return Sample(
        torch.tensor(ids), torch.zeros(count, 4).half(), torch.zeros(count), prompt_tokens, temperature, False
    )


def test_shards_return_what_was_written(tmp_path):
    samples = [make_sample([1, 2, 3], 1, 0.7), make_sample([4, 5], 2)]
    write_shard(samples, tmp_path / "00000.safetensors")
    write_shard(samples[:1], tmp_path / "00001.safetensors")
    read = read_samples(tmp_path)
    assert [s.token_ids.tolist() for s in read] == [[1, 2, 3], [4, 5], [1, 2, 3]]
    assert [(s.prompt_tokens, s.temperature) for s in read] == [(1, 0.7), (2, 0.0), (1, 0.7)]


def test_rounds_follow_each_other_through_a_text():
    #                 entries 0  1  2  3  4  5  6  7
    chances = torch.tensor([[0, 1, 1, 1, 1, 0, 1, 1], [0, 0, 1, 1, 0, 1, 1, 0]]).float()
    text = DraftedText(chances, chances, chances, first_round=1, is_greedy=True)
    draw = torch.Generator().manual_seed(0)
    # one draft: entry 1 accepts and leads to 3, then 5 (0), 6, end
    assert accepted_per_round([text], 1, draw) == 3 / 4
    # two drafts: entry 1 accepts 2 and leads to 4; there 2; 7 has no room for two
    assert accepted_per_round([text], 2, draw) == 2.0
    assert accepted_per_round([], 2, draw) == 0.0


def test_acceptance_given_the_text_is_that_of_rejection_sampling(checkpoint):
    """min(1, q/p) of the text's token, averaged over texts drawn from p, is the sum of min(p, q)."""
    source = open_source(checkpoint)
    target = freeze_target(source, None)
    torch.manual_seed(5)
    module = DraftModule(dataclasses.replace(source.config, intermediate_size=24))
    module.start_from_target(target.final_norm, torch.randn(4, 32))
    model = load_model(source, torch.float32, 64)
    prompt = [84, 111, 32]
    limits = GenerationLimits(rows=1, prompt_tokens=5, answer_tokens=2, end_ids=frozenset())
    shares = []
    with torch.inference_mode():
        first = next(iter(generate.generate(model, [Prompt((*prompt, 98), 1.0, False)], limits, seed=1)))
        for token in range(257):
            sample = dataclasses.replace(first, token_ids=torch.tensor([*prompt, 98, token, 0]))
            drafted = draft_text(module, target, None, sample, 1, torch.Generator().manual_seed(1))
            shares.append(float(drafted.acceptance[0, 2]))
        p = sequence_logits(source, [*prompt, 98])[-1].softmax(-1)
        hidden = first.hidden[2:3].float()
        outputs = module(first.hidden[None, :3].float(), target.embedding[[111, 32, 98]][None], target.tables, 1)
        q = (module.final_norm(outputs[0][0, 2]) @ target.output.float().T).softmax(-1)
    assert hidden.shape == (1, 32)
    assert float((p * torch.tensor(shares)).sum()) == pytest.approx(float(torch.minimum(p, q).sum()), abs=5e-3)


def drafting(checkpoint, seed=5):
    """The checkpoint's model in both forms, and a random head in both forms that agrees with it now and then."""
    source = open_source(checkpoint)
    target = freeze_target(source, None)
    torch.manual_seed(seed)
    module = DraftModule(dataclasses.replace(source.config, intermediate_size=24))
    module.start_from_target(target.final_norm, torch.randn(4, 32))
    for parameter in module.parameters():
        parameter.data = parameter.data.bfloat16().float()
    path = checkpoint / f"head-{seed}"
    write_draft_head(module, None, {}, path)
    model = load_model(source, torch.float32, 128)
    return source, model, load_draft_head(path, model), module, target


def test_greedy_rounds_emit_the_targets_text_and_accept_what_was_measured(checkpoint):
    source, model, head, module, target = drafting(checkpoint)
    lengths = []
    for drafts in (1, 3):
        with torch.inference_mode():
            sequence = SpeculativeSequence(model, head, list(b"To be, or"), 64, is_greedy=True, seed=1)
            while len(sequence.text.token_ids) < 44:
                sequence.run_round(drafts)
            text = sequence.text
            ids = torch.tensor(text.token_ids)
            scores = sequence_logits(source, text.token_ids)
            assert scores.argmax(-1)[8:-1].tolist() == text.token_ids[9:]
            states = SequenceBatch(model, 1, 64).run(torch.tensor([0]), ids[None], torch.arange(len(ids))[None])[0]
        sample = Sample(ids, states, scores.logsumexp(-1), 9, 0.0, True)
        drafted = draft_text(module, target, None, sample, drafts, torch.Generator())
        # the last emitted token was pending, so that the last round's drafts are all measurable but for its end
        measured = accepted_per_round([drafted], drafts, torch.Generator())
        whole = text.accepted
        while 9 + sum(whole) + len(whole) - whole[-1] - 1 + drafts > len(ids) - 1:
            whole = whole[:-1]
        assert measured == pytest.approx(sum(whole) / len(whole))
        lengths += whole
    assert sum(lengths) > 0


def test_copies_follow_the_latest_earlier_occurrence():
    text = copied_text(make_sample([7, 8, 9, 1, 7, 8, 9, 2, 7, 8, 9, 2], prompt_tokens=2), depths=2)
    # 7 8 at 4, 5: what followed is 9 1; the text goes on 9 2
    assert text.acceptance[:, 4:6].tolist() == [[1.0, 0.0], [0.0, 0.0]]
    # 7 8 at 8, 9: what followed last is 9 2, and so it goes on
    assert text.acceptance[0, 8:10].tolist() == [1.0, 1.0]
    assert text.acceptance[1, 9] == 1.0


def test_calibration_compares_what_was_said_with_what_happened():
    said, was = torch.tensor([[0.1, 0.15, 0.9, 0.5]]), torch.tensor([[0.0, 1.0, 1.0, 0.5]])
    text = DraftedText(was, said, was, first_round=0, is_greedy=True)
    table = calibration([text], bins=2)
    assert [row[2] for row in table] == [2, 2]
    assert table[0][:2] == pytest.approx((0.125, 0.5))
    assert calibration_error(table) == pytest.approx((0.375 * 2 + 0.05 * 2) / 4)


def test_frequent_tokens_are_the_answers_ascending():
    samples = [make_sample([9, 9, 3, 3, 3, 8, 5, 5])]
    assert frequent_tokens(samples, 12, 2).tolist() == [3, 5]
    assert frequent_tokens(samples, 12, 5).tolist() == [0, 1, 3, 5, 8]


def test_chat_prompts_keep_the_held_out_topics_whatever_the_seed():
    one, two = (list(chat_prompts(seed)) for seed in (1, 2))
    assert len(one) == len(TASKS) * len(TOPICS)
    assert len({prompt for prompt, _, _ in one}) == len(one)
    assert one != two
    held_out = [{prompt for prompt, _, is_held_out in prompts if is_held_out} for prompts in (one, two)]
    assert held_out[0] == held_out[1]
    assert 0.04 < len(held_out[0]) / len(one) < 0.1
    assert {temperature for _, temperature, _ in one} == {0.0, 0.7, 0.85, 1.0}


def test_the_chat_tokenizer_is_the_services(smollm2_path):
    service_model = load_text_model(resolve_model("smollm2-135m-instruct"))
    tokenizer = smollm2_tokenizer(smollm2_path)
    for prompt, _, _ in itertools.islice(chat_prompts(4), 20):
        rendered = service_model.render_chat([{"role": "user", "content": prompt}])
        assert chat_token_ids(tokenizer, prompt) == service_model.encode(rendered, add_special_tokens=False)
