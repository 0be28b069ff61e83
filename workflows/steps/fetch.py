"""Download a backbone from the hub into a folder; everything after works offline.

An interrupted download goes on where it stopped. `fetched.json` in the folder keeps the commit and
every file's checksum, so that no step hashes the weights again.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from methods.core.jsonfile import write_json
from methods.core.model.folder import FETCHED, file_facts
from workflows.runtime.files import kept_folder
from workflows.runtime.hub import one_sentence
from workflows.runtime.program import json_argument, run, step_parser
from workflows.suite.config import check_source

FILES = ["config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"]
TOKENIZER = ["tokenizer*", "special_tokens_map.json", "chat_template*"]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    parser.add_argument(
        "--source", required=True, metavar="JSON", help="as under backbones: of a suite"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the folder")
    return parser.parse_args()


def main() -> None:
    """Download config, safetensors and tokenizer; never pickle files."""
    from huggingface_hub import HfApi, snapshot_download

    args = arguments()
    spec = check_source(json_argument(args.source, "--source"), "backbone")
    name, asked = spec["path"].removeprefix("hub:"), spec.get("revision")
    with one_sentence(name), kept_folder(args.out) as folder:
        commit = HfApi().model_info(name, revision=asked).sha
        snapshot_download(name, revision=commit, local_dir=folder, allow_patterns=FILES + TOKENIZER)
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        facts = {
            str(file.relative_to(folder)): file_facts(file)
            for file in sorted(folder.rglob("*"))
            if file.is_file() and file.name != FETCHED
        }
        told = {"repository": name, "asked": asked, "commit": commit, "files": facts}
        write_json(folder / FETCHED, told)
    print(f"wrote {args.out}: {name} at {commit}")


if __name__ == "__main__":
    run(main)
