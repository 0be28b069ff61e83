"""Backbones that come from the hub, or that are trained on a world."""


# A node of a cluster often has no network.
localrules:
    fetch_backbone,


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
        "python -m workflows.steps.fetch --source {params.source:q} --out {output:q} > {log:q} 2>&1"


rule train_backbone:
    input:
        watched(SUITE.world_code()),
    output:
        directory(f"results/trained/{{world,{'|'.join(PRESETS)}}}"),
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
        gpu=GPU,
    params:
        device=DEVICE,
    message:
        f"world {{wildcards.world}}: train its backbone{FILES}"
    shell:
        "python -m workflows.steps.train_backbone --world {wildcards.world:q} --device {params.device}"
        " --threads {threads} --out {output:q} > {log:q} 2>&1"


rule rebuild_demo_backbone:
    input:
        "results/trained/demo",
