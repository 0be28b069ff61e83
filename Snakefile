"""The benchmark's table of contents: suite, rules, targets."""

import os
import re
import sys

from snakemake.utils import min_version

min_version("9.0")

# Steps run as `python -m workflows.steps.<step>` with the Python that runs Snakemake, or under
# `--sdm conda` with the environment's.
sys.path.insert(0, str(workflow.basedir))
os.environ.update(
    PYTHONPATH=str(workflow.basedir),
    PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]),
)

from workflows.demo.presets import PRESETS
from workflows.suite import inputs
from workflows.suite import commands
from workflows.suite.config import with_base
from workflows.suite.jobs import check_again, read_suite
from workflows.suite.progress import RunNames, TimeLeft, at_once
from workflows.suite.plan_text import opening
from workflows.report import FRAMES
from workflows.runtime.contents import digest

if not os.path.samefile(os.getcwd(), workflow.basedir):
    sys.exit("error: call snakemake in the checkout, without --directory")

# A default `configfile:` would merge into every other suite, so the demo is loaded only when no
# suite was given.
if "suite" not in config and not workflow.config_settings.configfiles:

    configfile: "workflows/suites/demo.yaml"


try:
    SUITE = read_suite(with_base(config))
    inputs.check_fetched(SUITE)
except ValueError as error:
    sys.exit(f"error: {error}")
if workflow.is_main_process:
    inputs.renew_models(SUITE)


# So many GPUs are in use at once; --resources gpu=N says how many the machine has. A cluster has its
# own limits. In a profile that Snakemake finds by itself it would win over any other profile.
if workflow.is_main_process and workflow.global_resources["_nodes"].value is None:
    if "gpu" not in workflow.global_resources:
        workflow.register_resource("gpu", 1)
    elif not SUITE.config["resources"]["gpu"]:
        print(
            "note: resources.gpu of the suite is 0: its jobs run on the CPU",
            file=sys.stderr,
        )


report: "workflows/report/workflow.rst"


include: "workflows/rules/common.smk"
include: "workflows/rules/prepare.smk"
include: "workflows/rules/data.smk"
include: "workflows/rules/backbones.smk"
include: "workflows/rules/fit.smk"
include: "workflows/rules/score.smk"
include: "workflows/rules/time.smk"
include: "workflows/rules/report.smk"


# A suite that changed since its check is checked again before anything runs. A suite that does not
# watch the code has runs of hours: it prints what it will cost.
onstart:
    check_again(SUITE)
    if not SUITE.config["watch_code"]:
        print(opening(SUITE), flush=True)


wildcard_constraints:
    suite=SUITE.name,
    backbone="[^/]+",
    row="[^/]+",
    budget="b[^/]+",
    seed=r"s\d+",
    task="[^/]+",


rule all:
    default_target: True
    input:
        f"reports/{SUITE.name}/index.html",
