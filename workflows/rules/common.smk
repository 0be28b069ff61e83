"""Paths and inputs that several rules share; the logic is in workflows/suite."""

# A signal to a job reaches its step, and the job ends when the step has: no shell waits between.
shell.prefix("set -euo pipefail; exec ")

RUN = "results/{suite}/{backbone}/{row}/{budget}/{seed}"
LOG = "results/{suite}/logs/{backbone}/{row}/{budget}/{seed}"
CHECKED = f"results/{SUITE.name}/suite.json"
if workflow.is_main_process:
    inputs.restore_check(SUITE, Path(CHECKED))
TASK_DATA = "results/{suite}/tasks/{task}.json"
# For messages: the run in words, its files, how long it takes.
RUN_NAMES = RunNames(SUITE)
TIME_LEFT = TimeLeft(
    SUITE,
    lambda: workflow.dag.needrun_jobs(),
    at_once(workflow.global_resources, SUITE),
)
RUN_NAME = "{RUN_NAMES:{wildcards.backbone}/{wildcards.row}/{wildcards.budget}/{wildcards.seed}}"
FILES = "\n    makes {output}\n    log {log}"
TIMED = f"{FILES}\n    {{TIME_LEFT:{{log}}}}"
RESOURCES = SUITE.config["resources"]
# A job that trains nothing runs on one device.
GPU = min(1, RESOURCES["gpu"])
DEVICE = SUITE.device


def model(group):
    """The folder of a fitted model, for the rows of one group; temporary if the suite says so."""
    rows = "|".join(map(re.escape, SUITE.rows(group))) or "(?!)"
    run = RUN.replace("{row}", f"{{row,{rows}}}")
    path = f"{run}/model"
    return directory(path) if SUITE.keeps(group) else temp(directory(path))


def job(wildcards):
    return SUITE.find(
        wildcards.backbone, wildcards.row, wildcards.budget, wildcards.seed
    )


def watched(paths):
    # Not even as old inputs: a file more, or texts made again, would run every job of a costly
    # suite again.
    return paths if SUITE.config["watch_code"] else []


def fit_code_files(wildcards):
    return watched(job(wildcards).code())


def start_folder(wildcards):
    return SUITE.start_folder(job(wildcards))


def other_models(wildcards):
    return job(wildcards).waits_for()


# As inputs they are there until the last job that reads them is done.
def base_models(wildcards):
    return [ancient(model) for model in job(wildcards).stands_on()]


def backbone(wildcards):
    return inputs.backbone_files(SUITE, wildcards.backbone)


def tokenizer(wildcards):
    return inputs.tokenizer_files(SUITE, wildcards.backbone)


# Used as params: a changed content makes a job run again, a changed time alone does not.
def fitted_contents(wildcards):
    return digest(inputs.fit_files(SUITE, job(wildcards)))


def tokenizer_contents(wildcards):
    return digest(tokenizer(wildcards))


def data_files(wildcards):
    return SUITE.data_files(job(wildcards))


def data_arguments(wildcards):
    return commands.data(SUITE, job(wildcards))
