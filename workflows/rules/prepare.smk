"""What comes before the runs: the check and the tasks' data. Texts are in data.smk.

They run where Snakemake runs: nodes of a cluster often have no network.
"""


localrules:
    prepare,
    check,
    data,
    task_data,
    tokens,


rule prepare:
    input:
        CHECKED,
        SUITE.prepared_files(),


rule check:
    input:
        # An edited backbone makes fits run again; a new check would hide that, see below.
        [
            ancient(inputs.backbone_files(SUITE, name))
            for name in SUITE.config["backbones"]
        ],
    output:
        update(CHECKED),
    log:
        f"results/{SUITE.name}/logs/check.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        # A function of `input`, so that a changed config does not run the check again: every job
        # needs it, and Snakemake could not say which have new params. The Snakefile checks again.
        config=lambda wildcards, input: SUITE.as_json,
    message:
        f"suite {SUITE.name}: check{FILES}"
    shell:
        "python -m workflows.steps.check --config {params.config:q} --out {output:q} > {log:q} 2>&1"


rule task_data:
    input:
        lambda wildcards: inputs.task_files(SUITE, wildcards.task),
    output:
        TASK_DATA,
    log:
        "results/{suite}/logs/tasks/{task}.log",
    priority: 40
    conda:
        "../../environment.yml"
    resources:
        mem_mb=4000,
        runtime=120,
    params:
        task=lambda wildcards: commands.task_data(SUITE, wildcards.task),
        contents=lambda wildcards: digest(inputs.task_files(SUITE, wildcards.task)),
    message:
        f"task {{wildcards.task}}: fetch its data{FILES}"
    shell:
        "python -m workflows.steps.task_data {params.task} --out {output:q} > {log:q} 2>&1"
