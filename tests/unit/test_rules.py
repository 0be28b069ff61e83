"""Rules quote what they put into a command of the shell."""

from __future__ import annotations

import re

from workflows import ROOT

# Lines of commands that are quoted where they are made, and numbers or words that a rule states.
MADE = {"{params.run}", "{params.data}", "{params.task}", "{params.device}", "{params.length}"}
NUMBERS = {"{threads}", "{resources.processes}"}


def test_every_name_in_a_command_is_quoted() -> None:
    commands = ""
    for file in sorted((ROOT / "workflows/rules").glob("*.smk")):
        for block in re.findall(r'^ +shell:\n((?: +".*\n)+)', file.read_text(), re.M):
            commands += block
    names = re.findall(r"\{[^{}]+\}", commands)
    assert {"{output:q}", "{log:q}"} < set(names)
    assert {name for name in names if not name.endswith(":q}")} == MADE | NUMBERS
