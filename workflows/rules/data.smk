"""Texts of a suite, and the tokens of those that rows are trained on."""

TEXT_CODE = watched(SUITE.text_code())


rule data:
    input:
        checked=ancient(CHECKED),
        source=lambda wildcards: inputs.source_files(SUITE, wildcards.part),
        code=TEXT_CODE,
    output:
        "results/{suite}/data/{part}.jsonl",
    log:
        "results/{suite}/logs/data/{part}.log",
    priority: 40
    conda:
        "../../environment.yml"
    resources:
        mem_mb=4000,
        runtime=120,
    params:
        source=lambda wildcards: SUITE.data_source(wildcards.part),
        contents=lambda wildcards: digest(inputs.source_files(SUITE, wildcards.part)),
    message:
        f"{{wildcards.part}} texts: prepare{FILES}"
    shell:
        "python -m workflows.steps.data --part {wildcards.part:q} --source {params.source:q}"
        " --out {output:q} > {log:q} 2>&1"


if SUITE.own_parts:

    ruleorder: texts > data

    OWN_WRITER = next(iter(SUITE.config["backbones"]))

    rule texts:
        input:
            checked=ancient(CHECKED),
            backbone=inputs.backbone_files(SUITE, OWN_WRITER),
            code=TEXT_CODE,
        output:
            f"results/{{suite}}/data/{{part,{'|'.join(SUITE.own_parts)}}}.jsonl",
        log:
            "results/{suite}/logs/data/{part}.log",
        priority: 40
        conda:
            "../../environment.yml"
        threads: 1
        resources:
            mem_mb=RESOURCES["mem_mb"],
            runtime=RESOURCES["runtime"],
            gpu=GPU,
        params:
            run=lambda wildcards: commands.texts(SUITE, wildcards.part),
            contents=digest(inputs.backbone_files(SUITE, OWN_WRITER)),
            device=DEVICE,
        message:
            f"{{wildcards.part}} texts: written by {OWN_WRITER}{FILES}"
        shell:
            "python -m workflows.steps.texts {params.run} --device {params.device}"
            " --threads {threads} --out {output:q} > {log:q} 2>&1"


rule tokens:
    input:
        data="results/{suite}/data/training.jsonl",
        tokenizer=tokenizer,
        code=TEXT_CODE,
    output:
        directory("results/{suite}/tokens/{backbone}/training.tokens"),
    log:
        "results/{suite}/logs/tokens/{backbone}.log",
    priority: 40
    conda:
        "../../environment.yml"
    resources:
        mem_mb=4000,
        runtime=120,
    params:
        backbone=lambda wildcards: SUITE.backbone_folder(wildcards.backbone),
        length=SUITE.config["max_length"],
        contents=tokenizer_contents,
    message:
        f"training texts: tokens for {{wildcards.backbone}}{FILES}"
    shell:
        "python -m workflows.steps.tokens --data {input.data:q} --backbone {params.backbone:q}"
        " --max-length {params.length} --out {output:q} > {log:q} 2>&1"


if SUITE.probes_tasks:

    ruleorder: probe > data

    rule probe:
        input:
            # What of a task changes its texts is in the params and in `files`.
            tasks=ancient(SUITE.probe_task_files()),
            files=inputs.probe_files(SUITE),
            checked=ancient(CHECKED),
            code=TEXT_CODE,
        output:
            "results/{suite}/data/probe.jsonl",
        log:
            "results/{suite}/logs/data/probe.log",
        priority: 40
        conda:
            "../../environment.yml"
        resources:
            mem_mb=4000,
            runtime=120,
        params:
            run=commands.probe(SUITE),
            contents=digest(inputs.probe_files(SUITE)),
        message:
            f"probe texts: made of the tasks{FILES}"
        shell:
            "python -m workflows.steps.probe {params.run} --task-data results/{wildcards.suite:q}/tasks"
            " --out {output:q} > {log:q} 2>&1"
