"""One fit: a row on a backbone at a budget under a seed; and some again under other arithmetic."""


rule compress:
    input:
        checked=ancient(CHECKED),
        code=compress_code,
        backbone=backbone_config,
        models=other_models,
        data=lambda wildcards: list(data_files(wildcards).values()),
    output:
        model("trained"),
    log:
        f"{LOG}/compress.log",
    benchmark:
        f"{LOG}/compress.tsv"
    conda:
        "../../environment.yml"
    threads: SUITE.processes
    resources:
        mem_mb=RESOURCES["mem_mb"],
        runtime=RESOURCES["runtime"],
        gpu=RESOURCES["gpu"],
    params:
        run=lambda wildcards: commands.compress(SUITE, job(wildcards)),
        start=start_folder,
        data=data_arguments,
        workdir=f"{RUN}/checkpoints",
        device=DEVICE,
        prefix="",
        threads=1,
    message:
        f"{RUN_NAME}: fit{TIMED}"
    shell:
        "{params.prefix} python -m workflows.steps.compress {params.run}"
        " --backbone {params.start:q} {params.data} --workdir {params.workdir}"
        " --device {params.device} --threads {params.threads} --out {output} > {log} 2>&1"


# What a suite names first is fitted before its other trained rows.
use rule compress as compress_first with:
    output:
        model("first"),
    priority: 10


# Nothing is trained: minutes each, one process, so that these rows come before all that train.
use rule compress as compress_untrained with:
    output:
        model("untrained"),
    priority: 20
    threads: 1
    resources:
        mem_mb=RESOURCES["mem_mb"],
        runtime=RESOURCES["runtime"],
        gpu=GPU,


use rule compress as refit with:
    output:
        temp(directory(f"{RUN}/noise/fit-{{arithmetic}}")),
    log:
        f"{LOG}/noise/compress-{{arithmetic}}.log",
    benchmark:
        f"{LOG}/noise/compress-{{arithmetic}}.tsv"
    threads: lambda wildcards: ARITHMETIC[wildcards.arithmetic].threads
    params:
        workdir=f"{RUN}/noise/checkpoints-{{arithmetic}}",
        prefix=lambda wildcards: ARITHMETIC[wildcards.arithmetic].prefix,
        threads=lambda wildcards: ARITHMETIC[wildcards.arithmetic].threads,
    message:
        f"{RUN_NAME}: fit again under {{wildcards.arithmetic}}{TIMED}"
