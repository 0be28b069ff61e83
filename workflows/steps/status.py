"""Where a suite stands while it runs, or after: `python -m workflows.steps.status --suite demo`.

Prints the running jobs with their last progress, stalled ones (no heartbeat for five minutes, or no
line in the log for an hour), failed ones with the end of their log, the time left, estimated from
earlier jobs, and which runs have other params than the suite has now. Reads the folder `results` of
the current folder; files merge as Snakemake's --configfile does.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from methods.core.jsonfile import read_json
from workflows.report.runs import other_params
from workflows.runtime.heartbeat import last_lines
from workflows.runtime.program import add_suite_argument, check_positive, run, step_parser
from workflows.suite.config import read_configs
from workflows.suite.jobs import Suite, read_suite
from workflows.suite.progress import PastTimes, in_words, sum_in_words
from workflows.suite.states import State, state_of, suite_steps

SHOWN = ("running", "stalled", "failed")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = step_parser(__doc__)
    add_suite_argument(parser)
    parser.add_argument(
        "--lines", type=int, default=5, help="lines shown of the log of a failed job"
    )
    return parser.parse_args()


def main() -> None:
    """Look, print."""
    args = arguments()
    check_positive(args, "lines")
    suite = read_suite(read_configs(args.suite))
    if not Path("results").is_dir():
        raise ValueError("there is no folder results here; call this in the checkout")
    print(
        "\n".join(status_lines(suite, [state_of(step) for step in suite_steps(suite)], args.lines))
    )
    if runs := outdated_runs(suite):
        print(f"Of other params than the suite has now, so made again: {', '.join(runs)}.")


def outdated_runs(suite: Suite) -> list[str]:
    """Runs whose record has other params than their job."""
    names = []
    for job in suite.jobs:
        file = Path(job.folder) / "record.json"
        # Checking whole records would take seconds in a long suite.
        if file.is_file() and other_params(read_json(file).get("params", {}), [job]):
            names.append("/".join(job.key))
    return names


def status_lines(suite: Suite, states: Sequence[State], lines: int) -> Iterator[str]:
    """The states as text: counts, then running, stalled and failed jobs in full."""
    counts = dict.fromkeys(("done", *SHOWN, "waiting"), 0)
    for state in states:
        counts[state.name] += 1
    summary = ", ".join(f"{count} {name}" for name, count in counts.items())
    yield f"Suite {suite.name}: {summary}{time_left(suite, states)}"
    for state in sorted((s for s in states if s.name in SHOWN), key=lambda s: SHOWN.index(s.name)):
        duration = f" for {in_words(state.seconds)}" if state.seconds else ""
        reason = f": {state.reason}" if state.reason else ""
        yield f"\n{state.name}{duration}: {state.step.name}{reason}"
        yield f"    log {state.step.log}"
        end = last_lines(state.step.log, lines if state.name == "failed" else 1)
        yield from (f"    {line}" for line in end)


def time_left(suite: Suite, states: Sequence[State]) -> str:
    """The time that the other jobs will take, as many side by side as run now."""
    past = PastTimes(suite)
    all_seconds = []
    for state in (state for state in states if state.name != "done"):
        seconds = past.expected(state.step.log)
        all_seconds.append(None if seconds is None else max(0.0, seconds - state.seconds))
    if not any(seconds is not None for seconds in all_seconds):
        return ""
    at_once = max(1, sum(state.name == "running" for state in states))
    return f"; left: {sum_in_words(all_seconds, at_once)}, {at_once} at once"


if __name__ == "__main__":
    run(main)
