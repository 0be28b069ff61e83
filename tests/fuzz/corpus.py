"""Inputs that once got through, ended in a traceback, or took all memory: every run tries them."""

from __future__ import annotations

from tests.fuzz.edits import GONE, Edit, put, raw, remove

DEEP = b"[" * 100_000
CONFIG, GENERATION, INDEX = "config.json", "generation_config.json", "model.safetensors.index.json"
TOKENIZER, WORDS = "tokenizer.json", "tokenizer_config.json"
CHOICE, RECORD = "tasks/toy_choice.yaml", "toy/hero/b25/s42/record.json"
CARD, DECIDED = "model/skipbench.json", "model/decisions.json"
SHARD = "model.layers.0.mlp.up_proj.weight"
PROMISE = b"\x93NUMPY\x01\x00v\x00" + (
    b"{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999, 6), }".ljust(117) + b"\n"
)
ESCAPE = "{{ ''.__class__.__mro__[1].__subclasses__() }}"

CORPUS: dict[str, list[Edit]] = {
    "configs": [
        put(CONFIG, 70_000, "num_hidden_layers"), put(CONFIG, 1, "num_hidden_layers"),
        put(CONFIG, -1, "rms_norm_eps"), put(CONFIG, [], "rope_parameters", "rope_theta"),
        put(CONFIG, "no", "rope_parameters", "rope_type"), put(CONFIG, 0, "vocab_size"),
        put(CONFIG, float("nan"), "initializer_range"), put(GENERATION, "x", "pad_token_id"),
        raw(CONFIG, DEEP), raw(CONFIG, b"\xff\xfe{}"), raw(CONFIG, b"[]"), raw(GENERATION, b"["),
    ],
    "tokenizers": [
        put(WORDS, [], "model_max_length"), put(TOKENIZER, 900, "model", "vocab", "w1"),
        put(TOKENIZER, GONE, "model"), raw(TOKENIZER, DEEP), raw(WORDS, b"[]"),
        put(WORDS, {"AutoTokenizer": ["evil.Evil", None]}, "auto_map"),
        put(WORDS, "Evil", "tokenizer_class"), remove(TOKENIZER),
    ],
    "weights": [
        raw("model.safetensors", b""), raw("model.safetensors", b"\xff" * 64),
        raw("model.safetensors", bytes(8)), remove("model.safetensors"),
    ],
    "shards": [
        put(INDEX, value, "weight_map", SHARD)
        for value in (7, [], "/etc/passwd", "../other.safetensors", "a/b.safetensors", "x.bin", "")
    ] + [put(INDEX, GONE, "metadata"), put(INDEX, [], "weight_map"), raw(INDEX, DEEP)],
    "documents": [
        put("rows.jsonl", "text", 2, "messages"), put("rows.jsonl", [], 2, "messages"),
        put("rows.jsonl", GONE, 2, "messages", 0, "role"), put("rows.jsonl", 3, 0),
        put("rows.jsonl", float("inf"), 0, "text"), raw("rows.jsonl", DEEP),
        raw("ids.npy", PROMISE),
        raw("ids.npy", PROMISE[:70]), raw("ids.npy", b""), raw("text.txt", b"caf\xe9"),
        raw("text.txt", b"\n \n"),
    ],
    "suites": [
        raw("suite.yaml", b"suite: tiny\ndata: .nan\n"), raw("suite.yaml", b"- 1\n"),
        raw("overlay.yaml", b"\xff"), put("suite.yaml", "../../x", "suite"),
        put("suite.yaml", {"../x": {"path": "toy"}}, "backbones"),
        put("suite.yaml", [0.25, float("nan")], "budgets"), put("overlay.yaml", "x", "resources"),
        put("suite.yaml", {"from": "hero", "params": {"alpha": "x"}}, "derive", "mine"),
    ],
    "tasks": [
        put(CHOICE, "", "doc_to_choice"), put(CHOICE, ESCAPE, "doc_to_text"),
        raw(CHOICE, b"task: ["),
        put(CHOICE, "../../toy/config.json", "include"),
        put(CHOICE, "f1", "metric_list", 0, "metric"),
        put(CHOICE, "./evil.py", "metric_list", 0, "metric"),
        put(CHOICE, "{{gone}}", "doc_to_text"),
        raw("tasks/choice.jsonl", b"{"), put(CHOICE, 1, "output_type"),
    ],
    "records": [
        put(RECORD, float("nan"), "scores", 0, "value"), put(RECORD, 10**9, "layers", "dense"),
        put(RECORD, [9], "layers", "removed"), put(RECORD, [], "routes", 0, "executed"),
        put(RECORD, 7, "routes", 0, "executed", 1), put(RECORD, 10**9, "units", 0, "layer"),
        put(RECORD, "<script>alert(1)</script>", "title"),
        put(RECORD, "<script>alert(1)</script>", "row"), raw(RECORD, DEEP), raw(RECORD, b"[]"),
        put("suite.json", 3, "retain_tasks"), put("suite.json", [[]], "retain_tasks"),
        raw("toy/hero/b25/s42/speed.json", b'{"lines": [{}]}'),
    ],
    "decisions": [
        put("toy/hero/b25/s42/record.decisions.json", value, "training")
        for value in ([1, 2], {"update": 1}, [{"update": "x"}])
    ] + [raw("toy/hero/b25/s42/record.decisions.json", b"[1]")],
    "models": [
        put(CARD, GONE, "backbone"), put(CARD, [], "backbone"), put(CARD, "x", "params"),
        put(CARD, 3, "structure"), put(CARD, 70_000, "backbone", "config", "num_hidden_layers"),
        put(CARD, "{{ x }}", "backbone", "config", "dtype"), put(CARD, "gone", "row"),
        put(CARD, [99], "structure", "removed_layers"),
        put(CARD, 100, "structure", "removed_layers"),
        raw(CARD, DEEP), raw(DECIDED, b"\xff"), raw(DECIDED, b"[]"), put(DECIDED, "x", "layers"),
    ],
    "command fit": [
        raw("command.json", b"[]"), put("command.json", "--gone", 0),
        put("command.json", "1e400", 5),
        put("command.json", str(10**30), 7), put("command.json", "[]", 9),
        put("command.json", "text.txt", 13),
    ],
    "command score": [
        put("command.json", "[[]]", 3), put("command.json", '[{"task": []}]', 3),
        put("command.json", "0", 7), put("command.json", "x", 9), put("command.json", "ids.npy", 1),
    ],
    "command data": [
        put("command.json", "[]", 3), put("command.json", "{}", 3), put("command.json", "1", 3),
        put("command.json", '{"source": "demo"}', 3), put("command.json", '{"source": "toy"}', 3),
        put("command.json", '{"source": "rows.jsonl", "rows": "x"}', 3),
        put("command.json", '{"source": "hub:x"}', 3),
    ],
}  # fmt: skip
