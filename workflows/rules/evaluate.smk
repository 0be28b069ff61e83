"""One record: a fitted model under the harness; and the reference again at other batch sizes."""


rule evaluate:
    input:
        model=f"{RUN}/model",
        code=watched(SUITE.evaluation_code()),
        texts=SUITE.text_files(),
    output:
        f"{RUN}/record.json",
    log:
        f"{LOG}/evaluate.log",
    benchmark:
        f"{LOG}/evaluate.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=RESOURCES["mem_mb"],
        runtime=RESOURCES["runtime"],
        gpu=RESOURCES["gpu"],
    params:
        run=lambda wildcards: SUITE.evaluate_arguments(job(wildcards)),
        tasks=SUITE.tasks_json,
        device=DEVICE,
    shell:
        "python -m workflows.steps.evaluate --model {input.model} --tasks {params.tasks:q} {params.run}"
        " --device {params.device} --threads {threads} --out {output} > {log} 2>&1"


rule noise:
    input:
        model=f"{RUN}/model",
        code=watched(SUITE.evaluation_code()),
        texts=SUITE.text_files(),
    output:
        f"{RUN}/noise/batch{{size}}.json",
    log:
        f"{LOG}/noise/batch{{size}}.log",
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=RESOURCES["mem_mb"],
        runtime=RESOURCES["runtime"],
        gpu=RESOURCES["gpu"],
    params:
        run=lambda wildcards: SUITE.evaluate_arguments(
            job(wildcards), int(wildcards.size)
        ),
        tasks=SUITE.tasks_json,
        device=DEVICE,
    shell:
        "python -m workflows.steps.evaluate --model {input.model} --tasks {params.tasks:q} {params.run}"
        " --device {params.device} --threads {threads} --out {output} > {log} 2>&1"
