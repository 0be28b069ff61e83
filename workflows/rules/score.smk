"""One record: a fitted model scored by the harness. And the noise floor: scored again."""


rule score:
    input:
        model=f"{RUN}/model",
        base=base_models,
        code=watched(SUITE.evaluation_code()),
        files=inputs.score_files(SUITE),
        tasks=SUITE.task_data_files(),
        # Not for the noise floor, whose jobs have a size.
        fidelity=lambda wildcards: (
            [] if "size" in wildcards.keys() else SUITE.fidelity_files()
        ),
    output:
        f"{RUN}/record.json",
    log:
        f"{LOG}/score.log",
    benchmark:
        f"{LOG}/score.tsv"
    # A model is scored before the next fit begins: results come early, models do not pile up.
    priority: 30
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=RESOURCES["mem_mb"],
        runtime=RESOURCES["runtime"],
        gpu=GPU,
    params:
        run=lambda wildcards: commands.score(SUITE, job(wildcards)),
        tasks=SUITE.tasks_json,
        contents=digest(inputs.score_files(SUITE)),
        device=DEVICE,
    message:
        f"{RUN_NAME}: score{TIMED}"
    shell:
        "python -m workflows.steps.score --model {input.model:q} --tasks {params.tasks:q} {params.run}"
        " --task-data results/{wildcards.suite:q}/tasks"
        " --device {params.device} --threads {threads} --out {output:q} > {log:q} 2>&1"


use rule score as noise with:
    output:
        f"{RUN}/noise/batch{{size}}.json",
    log:
        f"{LOG}/noise/batch{{size}}.log",
    benchmark:
        f"{LOG}/noise/batch{{size}}.tsv"
    params:
        run=lambda wildcards: commands.score(SUITE, job(wildcards), int(wildcards.size)),
    message:
        f"{RUN_NAME}: score again at batch size {{wildcards.size}}{TIMED}"
