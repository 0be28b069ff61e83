"""Download a backbone from the hub into a folder; everything after works offline."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from workflows.runtime.files import whole_folder
from workflows.runtime.program import json_argument, run

FILES = ["config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"]
TOKENIZER = ["tokenizer*", "special_tokens_map.json", "chat_template*"]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True, metavar="JSON", help="as under backbones:")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    return parser.parse_args()


def main() -> None:
    """Download config, safetensors and tokenizer; never pickle files."""
    os.environ["HF_HUB_OFFLINE"] = "0"
    from huggingface_hub import snapshot_download

    args = arguments()
    spec = json_argument(args.source, "--source")
    with whole_folder(args.out) as folder:
        snapshot_download(
            spec["path"].removeprefix("hub:"),
            revision=spec.get("revision"),
            local_dir=folder,
            allow_patterns=FILES + TOKENIZER,
        )
    print(f"wrote {args.out}")


if __name__ == "__main__":
    run(main)
