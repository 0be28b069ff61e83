"""What comes before the runs: the check of the suite, data, backbones. Only these may download.

They run where Snakemake runs: nodes of a cluster often see no network.
"""


localrules:
    prepare,
    check,
    data,
    task_data,
    tokens,
    fetch_backbone,


rule prepare:
    input:
        CHECKED,
        SUITE.prepared_files(),


rule check:
    input:
        # Edited, they make fits run again; the check would hide that, as below.
        [ancient(inputs.backbone_files(SUITE, name)) for name in SUITE.config["backbones"]],
    output:
        CHECKED,
    log:
        f"results/{SUITE.name}/logs/check.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        # A function of the input never makes a job run again: a job above all others that does would
        # hide from Snakemake which of them have new params. The Snakefile checks a changed suite.
        config=lambda wildcards, input: SUITE.as_json,
    message:
        f"suite {SUITE.name}: check{FILES}"
    shell:
        "python -m workflows.steps.check --config {params.config:q} --out {output} > {log} 2>&1"


rule data:
    input:
        checked=ancient(CHECKED),
        source=lambda wildcards: inputs.source_files(SUITE, wildcards.part),
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
        "python -m workflows.steps.data --part {wildcards.part} --source {params.source:q}"
        " --out {output} > {log} 2>&1"


rule tokens:
    input:
        data="results/{suite}/data/training.jsonl",
        tokenizer=tokenizer,
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
        "python -m workflows.steps.tokens --data {input.data} --backbone {params.backbone:q}"
        " --max-length {params.length} --out {output} > {log} 2>&1"


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
        "python -m workflows.steps.task_data {params.task} --out {output} > {log} 2>&1"


rule fetch_backbone:
    input:
        lambda wildcards: inputs.origin_files(SUITE, wildcards.name),
    output:
        directory("results/backbones/{name,[^/]+}"),
    log:
        "results/logs/fetch_backbone/{name}.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=4000,
        runtime=240,
    params:
        source=lambda wildcards: SUITE.hub_source(wildcards.name),
    message:
        f"backbone {{wildcards.name}}: fetch{FILES}"
    shell:
        "python -m workflows.steps.fetch --source {params.source:q} --out {output} > {log} 2>&1"


rule train_backbone:
    output:
        directory("results/trained/{world}"),
    log:
        "results/logs/train_backbone/{world}.log",
    benchmark:
        "results/logs/train_backbone/{world}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=300,
        gpu=RESOURCES["gpu"],
    params:
        device=DEVICE,
    message:
        f"world {{wildcards.world}}: train its backbone{FILES}"
    shell:
        "python -m workflows.steps.train_backbone --world {wildcards.world} --device {params.device}"
        " --threads {threads} --out {output} > {log} 2>&1"


rule rebuild_demo_backbone:
    input:
        "results/trained/demo",


if SUITE.probes_tasks:

    ruleorder: probe > data

    rule probe:
        input:
            tasks=SUITE.probe_task_files(),
            files=inputs.probe_files(SUITE),
            checked=ancient(CHECKED),
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
            "python -m workflows.steps.probe {params.run} --task-data results/{wildcards.suite}/tasks"
            " --out {output} > {log} 2>&1"
