"""Packing, the loss, the training step and the shape of the worlds' backbones."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import LlamaForCausalLM

from tests import steps
from workflows import ROOT
from workflows.demo import pretrain
from workflows.demo.corpus import documents, items
from workflows.demo.presets import PRESETS, Recipe
from workflows.demo.pretrain import (
    NO_LABEL,
    Lessons,
    Packer,
    backbone_config,
    new_backbone,
    rate_at,
    train,
    update,
    weighted_loss,
)
from workflows.demo.tokenizer import BOS_ID, EOS_ID, PAD_ID, build_tokenizer
from workflows.demo.world import World, the_world

DEMO, SMALL = the_world("demo"), the_world("small")
TASK_FILES = ROOT / "workflows" / "evaluation" / "tasks"
GENERATION = {
    "demo": TASK_FILES / "demo" / "_generation_yaml",
    "small": TASK_FILES / "small" / "_longer_yaml",
}
TINY = Recipe(seed=3, tokens=256, rows=2, length=64)


@pytest.fixture(scope="module", autouse=True)
def five_items() -> Iterator[None]:
    """Reports of a training on five items per task, not on a hundred."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrain, "exact_rates", partial(pretrain.exact_rates, count=5))
        yield


def test_rows_hold_whole_documents_in_order() -> None:
    tokenizer = build_tokenizer(DEMO)
    batch = Packer(DEMO, documents(DEMO, "train", 0), TINY).batch()
    texts = [
        f"{d['prompt']} {d['completion']}"
        for d in itertools.islice(documents(DEMO, "train", 0), 40)
    ]
    found = []
    for ids, segments in zip(batch.ids, batch.segments, strict=True):
        for segment in range(1, int(segments.max()) + 1):
            document = ids[segments == segment]
            assert document[0] == BOS_ID
            assert document[-1] == EOS_ID
            found.append(tokenizer.decode(document[1:-1]))
    assert found == texts[: len(found)]
    assert (batch.ids[batch.segments == 0] == PAD_ID).all()


def test_labels_are_the_next_token_of_the_same_document() -> None:
    batch = Packer(DEMO, documents(DEMO, "train", 0), TINY).batch()
    inside = batch.segments[:, :-1] == batch.segments[:, 1:]
    inside &= batch.segments[:, :-1] > 0
    labels = batch.labels[:, :-1]
    assert (labels[inside] == batch.ids[:, 1:][inside]).all()
    assert (labels[~inside] == NO_LABEL).all()
    assert (batch.weights[batch.labels == NO_LABEL] == 0).all()


def test_answer_tokens_weigh_one_and_prompt_tokens_less() -> None:
    packer = Packer(DEMO, iter(()), TINY)
    entries = packer.encode({"prompt": "the age of", "completion": "the 7"})
    assert [entry[4] for entry in entries] == [0.1, 0.1, 0.1, 1.0, 1.0, 1.0, 0.0]
    assert [entry[1] for entry in entries] == list(range(7))


def test_packed_documents_do_not_see_each_other() -> None:
    model = new_backbone(DEMO, 0).eval()
    stream = list(itertools.islice(documents(DEMO, "train", 0), 3))
    packed = Packer(DEMO, iter(stream), Recipe(rows=1, length=64))
    entries = [packed.encode(document) for document in stream]
    with torch.no_grad():
        alone = [model(input_ids=torch.tensor([[e[0] for e in row]])).logits[0] for row in entries]
        batch = Packer(
            DEMO, itertools.chain(stream, documents(DEMO, "train", 1)), Recipe(rows=1)
        ).batch()
        together = model(
            input_ids=batch.ids, attention_mask=batch.mask(), position_ids=batch.positions
        ).logits[0]
    for number, logits in enumerate(alone, start=1):
        chosen = together[batch.segments[0] == number]
        if len(chosen) == len(logits):
            torch.testing.assert_close(chosen, logits, atol=1e-5, rtol=1e-5)


def test_the_loss_is_computed_where_model_and_rows_are() -> None:
    batch = Packer(DEMO, documents(DEMO, "train", 0), TINY).batch().to("meta")
    assert weighted_loss(model_on_meta(DEMO), batch).device.type == "meta"


def test_rate_rises_then_falls_to_zero() -> None:
    recipe = Recipe(tokens=100 * 32 * 64)
    rates = [rate_at(step, recipe) for step in range(recipe.steps)]
    assert max(rates) == pytest.approx(recipe.rate)
    assert rates.index(max(rates)) == round(recipe.warmup * recipe.steps) - 1
    assert rates[-1] < 0.01 * recipe.rate


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """The weights after TINY."""
    return train(DEMO, TINY, tmp_path_factory.mktemp("tiny"))[0].state_dict()


def test_training_is_deterministic_and_leaves_the_global_generator_alone(
    tiny: dict[str, Tensor], tmp_path: Path
) -> None:
    before = torch.random.get_rng_state()
    weights = train(DEMO, TINY, tmp_path)[0].state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(weights[name], tiny[name]) for name in weights)


def test_an_interrupted_training_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(TINY, tokens=8 * 128, first_lessons=0.5)
    whole, reports = train(DEMO, recipe, tmp_path / "whole")
    made: list[int] = []

    def failing(*args: Any) -> float:
        made.append(1)
        if len(made) == 6:
            raise KeyboardInterrupt
        return update(*args)

    monkeypatch.setattr(pretrain, "update", failing)
    with pytest.raises(KeyboardInterrupt):
        train(DEMO, recipe, tmp_path / "cut")
    resumed, again = train(DEMO, recipe, tmp_path / "cut")
    assert len(made) == 5 + 1 + 3
    assert again == reports
    for name, weight in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], weight), name


def test_a_snapshot_of_another_recipe_is_left_alone(
    tiny: dict[str, Tensor], tmp_path: Path
) -> None:
    train(DEMO, replace(TINY, tokens=3 * 128), tmp_path)
    again, reports = train(DEMO, TINY, tmp_path)
    assert [report["step"] for report in reports] == [1, 2]
    assert torch.equal(again.lm_head.weight, tiny["lm_head.weight"])


def test_batches_packed_in_another_process_are_the_same() -> None:
    recipe = replace(TINY, tokens=4 * 128, first_lessons=0.5)
    here = list(Lessons(DEMO, recipe, 1))
    there = list(DataLoader(Lessons(DEMO, recipe, 1), batch_size=None, num_workers=1))
    assert len(here) == len(there) == 3
    for one, other in zip(here, there, strict=True):
        for field in fields(one):
            assert torch.equal(getattr(one, field.name), getattr(other, field.name))


def test_untrained_loss_is_near_that_of_a_uniform_guess() -> None:
    model = new_backbone(DEMO, 0)
    loss = weighted_loss(model, Packer(DEMO, documents(DEMO, "train", 0), TINY).batch())
    assert loss.item() == pytest.approx(torch.tensor(model.config.vocab_size).log().item(), abs=0.5)


def test_the_small_backbone_has_about_ten_million_parameters() -> None:
    assert model_on_meta(SMALL).num_parameters() == 11_205_888


@pytest.mark.parametrize("name", PRESETS)
def test_late_ffns_hold_the_share_they_have_in_llama_31_8b(name: str) -> None:
    model = model_on_meta(the_world(name))
    sizes = [sum(p.numel() for p in layer.mlp.parameters()) for layer in model.model.layers]
    half, quarter = len(sizes) // 2, len(sizes) // 4
    assert sum(sizes[half:]) / model.num_parameters() == pytest.approx(0.351, abs=0.003)
    assert sum(sizes[quarter:]) / model.num_parameters() == pytest.approx(0.526, abs=0.003)


def model_on_meta(world: World) -> LlamaForCausalLM:
    with torch.device("meta"):
        return LlamaForCausalLM(backbone_config(world))


@pytest.mark.parametrize("name", PRESETS)
def test_every_document_fits_a_row_and_every_answer_what_is_generated(name: str) -> None:
    world = the_world(name)
    packer = Packer(world, documents(world, "train", 0), world.preset.recipe)
    longest = max(len(packer.encode(next(packer.stream))) for _ in range(20_000))
    assert longest <= 0.8 * world.preset.recipe.length
    limit = int(re.search(r"max_gen_toks: (\d+)", GENERATION[name].read_text())[1])
    for kind in ("arithmetic", "program"):
        answers = [item["answer"] for item in items(f"{name}_{kind}", "test")]
        assert max(len(answer.split()) for answer in answers) < limit


def test_step_writes_a_whole_directory_or_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "backbone"
    steps.call("train_backbone", "--out", out, "--tokens", 4096)
    facts = json.loads((out / "training.json").read_text())
    weights = load_file(out / "model.safetensors")
    assert facts["parameters"] == sum(weight.numel() for weight in weights.values())
    assert not [path for path in tmp_path.iterdir() if path != out]
    log = [json.loads(line) for line in (out / "training_log.jsonl").read_text().splitlines()]
    assert log[-1] == facts["final"]
    refuse = steps.Refuse(capfd, tmp_path)
    assert "exists already" in refuse("train_backbone", "--out", out, "--tokens", 4096)
