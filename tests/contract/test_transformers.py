"""Every row where transformers and lm-eval meet it: saved, written, searched, scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

import workflows.evaluation.registered  # noqa: F401
from methods import discover, load_model
from methods.core.model.backbone import layers, load_backbone
from methods.core.model.checkpoint import load
from methods.core.routing.routed import router_of
from tests import steps
from tests.contract.folders import QUICK, SHIPPED, SHORT, Folders
from tests.near import assert_near
from tests.toys.texts import PAD, make_tokenizer
from workflows.evaluation.harness import CountingLM

ROWS = discover()
CASES = [
    (row, kind) for row in ROWS for kind in ("llama", "tied") if kind == "llama" or row not in QUICK
]
CAUSAL = [row for row in ROWS if ROWS[row].causal]
IDS = torch.randint(0, 60, (3, 14), generator=torch.Generator().manual_seed(1))
PROMPTS = [IDS[0, :3], IDS[1, :9], IDS[2, :6]]

WITHOUT_METHODS = """
import sys, torch
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
ids, *folders = sys.argv[1:]
ids, found = torch.load(ids), {}
for folder in folders:
    try:
        with torch.no_grad():
            found[folder] = AutoModelForCausalLM.from_pretrained(folder).eval()(ids).logits
    except ValueError as error:
        assert "has model type `skipbench`" in str(error), error
assert "methods" not in sys.modules
torch.save(found, "logits.pt")
"""


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(IDS).logits


def settings(model: Any) -> dict[str, Any]:
    """What a generation config says, but for where it comes from."""
    said = model.generation_config.to_diff_dict()
    return {
        k: v for k, v in said.items() if k not in ("transformers_version", "_from_model_config")
    }


def trained(model: Any) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize(("row", "kind"), CASES)
def test_transformers_loads_a_folder_as_what_it_is(row: str, kind: str, folders: Folders) -> None:
    expected = load(folders.fit(row, kind))
    for folder in (folders.fit(row, kind), folders.save(row, kind)):
        again = AutoModelForCausalLM.from_pretrained(folder)
        assert torch.equal(logits(again), logits(expected.model))
        assert type(again.model) is type(expected.model.model)
        assert settings(again) == settings(expected.model)
        if (folder / "skipbench.json").exists():
            assert load(folder).ledger == expected.ledger
            assert trained(load_model(folder)) == trained(expected.model)
        else:
            assert row == "dense"


def test_a_healed_row_is_saved_with_what_it_started_from(folders: Folders, tmp_path: Path) -> None:
    arguments = ["--params", json.dumps(SHORT | {"rank": 2}), "--max-length", 64]
    arguments += ["--train", folders.data["training"]]
    healed = steps.fit("lora", folders.fit("slicegpt"), tmp_path / "healed", *arguments)
    load_model(healed).save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logits(again), logits(load_model(healed)))
    assert load(tmp_path / "saved").ledger == load(healed).ledger


def test_without_methods_a_folder_is_refused_or_exact(folders: Folders) -> None:
    """A stock process must not take any row for the dense model."""
    torch.save(IDS, folders.home / "ids.pt")
    known = {str(make(row)): row for row in ROWS for make in (folders.fit, folders.save)}
    (folders.home / "stock.py").write_text(WITHOUT_METHODS)
    code = f"import os; os.chdir({str(folders.home)!r}); exec(open('stock.py').read())"
    done = steps.python("-c", code, folders.home / "ids.pt", *known)
    assert done.returncode == 0, done.stderr
    found = torch.load(folders.home / "logits.pt")
    for folder, stock in found.items():
        assert torch.equal(stock, logits(load_model(folders.fit(known[folder]))))
    loaded = {known[folder] for folder in found}
    assert {"dense", "shortgpt", "laco"} <= loaded
    assert loaded.isdisjoint(row for row in ROWS if ROWS[row].kind == "dynamic" or row in QUICK)


@pytest.mark.parametrize("row", ROWS)
def test_every_row_ships_the_settings_of_its_backbone(row: str, folders: Folders) -> None:
    said = settings(load_model(folders.fit(row)))
    assert said == settings(load_backbone(folders.home / "llama").model)
    assert said.items() >= SHIPPED.items()


def test_with_nothing_removed_a_static_row_writes_the_dense_text(folders: Folders) -> None:
    given = {"max_new_tokens": 12, "pad_token_id": PAD, "attention_mask": torch.ones_like(IDS)}
    dense = load_backbone(folders.home / "llama").model
    text = dense.generate(IDS, **given)
    whole = load_model(folders.fit("shortgpt", layers=0))
    assert torch.equal(whole.generate(IDS, **given), text)
    assert not torch.equal(dense.generate(IDS, repetition_penalty=1.0, **given), text)


@pytest.mark.parametrize("row", CAUSAL)
def test_beam_search_needs_neither_cache_nor_pads(row: str, folders: Folders) -> None:
    model = load_model(folders.fit(row))
    options = {"max_new_tokens": 8, "pad_token_id": PAD, "num_beams": 2}
    # transformers before 5.23 counts the pads of a prompt as words that repeat.
    options["repetition_penalty"] = 1.0
    length = max(map(len, PROMPTS))
    ids = torch.full((len(PROMPTS), length), PAD)
    for line, prompt in zip(ids, PROMPTS, strict=True):
        line[length - len(prompt) :] = prompt
    together = model.generate(ids, attention_mask=(ids != PAD).long(), **options)
    for prompt, line in zip(PROMPTS, together[:, length:], strict=True):
        mask = torch.ones_like(prompt)[None]
        slow = model.generate(prompt[None], attention_mask=mask, use_cache=False, **options)
        written = slow[0, len(prompt) :]
        assert torch.equal(line[: len(written)], written)
        assert (line[len(written) :] == PAD).all()


@pytest.mark.parametrize("row", ROWS)
def test_a_pipeline_writes_what_generate_writes(row: str, folders: Folders, caplog: Any) -> None:
    folder = folders.fit(row)
    tokenizer, prompt = AutoTokenizer.from_pretrained(folder), "w5 w17 w40 w3"
    model = load_model(folder)
    ids = tokenizer(prompt, return_tensors="pt")
    expected = model.generate(**ids, max_new_tokens=6, do_sample=False)[
        0, ids["input_ids"].shape[1] :
    ]
    for given in ({"model": str(folder)}, {"model": model, "tokenizer": tokenizer}):
        write = pipeline("text-generation", **given)
        (found,) = write(prompt, max_new_tokens=6, do_sample=False, return_full_text=False)
        assert (
            found["generated_text"].split()
            == tokenizer.decode(expected, skip_special_tokens=True).split()
        )
    assert "is not supported" not in caplog.text


@pytest.mark.parametrize("row", ["shortgpt", "llm-pruner", "random-skip"])
def test_a_head_of_its_own_is_fitted_read_and_scored(row: str, folders: Folders) -> None:
    """Under a config that ties it: its row counts it and lm-eval does not tie it away."""
    head = load_file(folders.home / "own/model.safetensors")["lm_head.weight"]
    for folder in (folders.fit(row, "own"), folders.save(row, "own")):
        loaded, tokenizer = load(folder), make_tokenizer()
        CountingLM(loaded.model, tokenizer, loaded.ledger, batch_size=1, max_length=None)
        assert torch.equal(loaded.model.lm_head.weight, head)
        assert loaded.ledger.total == load(folders.fit(row, "tied")).ledger.total + head.numel()
        assert torch.equal(
            logits(loaded.model), logits(AutoModelForCausalLM.from_pretrained(folder))
        )


@pytest.mark.parametrize("row", ROWS)
def test_a_call_takes_and_gives_what_transformers_documents(row: str, folders: Folders) -> None:
    model = load_model(folders.fit(row))
    expected = logits(model)
    with torch.no_grad():
        output = model(IDS, labels=IDS)
        by_hand = cross_entropy(expected[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
        assert float(output.loss) == pytest.approx(float(by_hand), rel=1e-5)
        for kept, places in ((3, [11, 12, 13]), (torch.tensor([2, 9]), [2, 9])):
            assert_near(model(IDS, logits_to_keep=kept).logits, expected[:, places])
        first, cache = model(IDS, return_dict=False)
        assert torch.equal(first, expected)
        assert torch.equal(model.lm_head(model.model(IDS, return_dict=False)[0]), expected)
        assert model(IDS, use_cache=False).past_key_values is None
        # As stock: a call returns a cache, with which the next goes on.
        step = model(IDS[:, :1], past_key_values=cache).logits[:, -1]
        longer = model(torch.cat([IDS, IDS[:, :1]], dim=1)).logits[:, -1]
        torch.testing.assert_close(step, longer, rtol=1e-4, atol=1e-4)
        embeddings = model.get_input_embeddings()(IDS)
        for given in ({}, {"input_ids": IDS, "inputs_embeds": embeddings}):
            with pytest.raises(ValueError, match="input_ids or inputs_embeds"):
                model(**given)
        if row.startswith("random-skip"):
            with pytest.raises(ValueError, match="so it needs input_ids"):
                model(inputs_embeds=embeddings)
        else:
            assert torch.equal(model(inputs_embeds=embeddings).logits, expected)


@pytest.mark.parametrize("row", ROWS)
def test_hidden_states_are_what_enters_and_leaves_the_layers(row: str, folders: Folders) -> None:
    model, left = load_model(folders.fit(row)), []
    stack = layers(model)
    for layer in stack:
        layer.register_forward_hook(lambda *call: left.append(call[-1]))
    with torch.no_grad():
        output = model(IDS, output_hidden_states=True)
        states = output.hidden_states
        assert len(states) == len(stack) + 1
        assert torch.equal(states[0], model.get_input_embeddings()(IDS))
        assert torch.equal(model.lm_head(states[-1]), output.logits)
        router = router_of(model)
        if router is None:
            assert all(map(torch.equal, states[1:-1], left[:-1]))
        elif "lora_" not in str(model.state_dict().keys()):
            # With open gates it is the dense model.
            forced = torch.ones(len(IDS), len(router.units), IDS.shape[1], dtype=torch.bool)
            dense = load_backbone(folders.home / "llama").model
            stock = dense(IDS, output_hidden_states=True).hidden_states
            opened = model(IDS, forced=forced, output_hidden_states=True).hidden_states
            for state, other in zip(opened, stock, strict=True):
                assert_near(state, other)
        ends = model(IDS, output_hidden_states=[0, -1]).hidden_states
        assert torch.equal(ends[-1], states[-1])
        assert [state is None for state in ends] == [False, *[True] * (len(stack) - 1), False]
        assert model(IDS).hidden_states is None
        asked = {"output_hidden_states": True, "return_dict_in_generate": True}
        written = model.generate(IDS, max_new_tokens=2, eos_token_id=None, **asked)
        model.config.output_hidden_states = True
        assert len(model(IDS).hidden_states) == len(states)
    assert [len(step) for step in written.hidden_states] == [len(states)] * 2


@pytest.mark.parametrize("row", ROWS)
def test_attention_weights_are_given_or_refused(row: str, folders: Folders) -> None:
    model = load_model(folders.fit(row))
    if router_of(model) is not None or row == "blockpruner":
        with pytest.raises(ValueError, match="no attention weights"):
            model(IDS, output_attentions=True)
        return
    expected = logits(model)
    model.set_attn_implementation("eager")
    output = model(IDS, output_attentions=True)
    torch.testing.assert_close(output.logits, expected, rtol=1e-4, atol=1e-4)
    assert len(output.attentions) == len(layers(model))
