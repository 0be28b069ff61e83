"""One fit: a row on a backbone at a budget under a seed."""


rule fit:
    input:
        checked=ancient(CHECKED),
        code=fit_code_files,
        backbone=backbone,
        models=other_models,
        data=lambda wildcards: list(data_files(wildcards).values()),
    output:
        model("trained"),
    log:
        f"{LOG}/fit.log",
    benchmark:
        f"{LOG}/fit.tsv"
    conda:
        "../../environment.yml"
    threads: SUITE.processes
    resources:
        mem_mb=SUITE.fit_mem_mb,
        runtime=RESOURCES["runtime"],
        gpu=RESOURCES["gpu"],
        # A resource, since another number of processes must not run finished fits again.
        processes=SUITE.processes,
        # SLURM: its processes start on one node, from one task.
        nodes=1,
        tasks=0,
    params:
        # A function of `input`, whose change runs nothing again.
        run=lambda wildcards, input: commands.fit(SUITE, job(wildcards)),
        numbers=lambda wildcards: commands.numbers_of_fit(SUITE, job(wildcards)),
        start=start_folder,
        data=data_arguments,
        contents=fitted_contents,
        workdir=f"{RUN}/checkpoints",
        device=DEVICE,
    message:
        f"{RUN_NAME}: fit{TIMED}"
    shell:
        "python -m workflows.steps.fit {params.run}"
        " --backbone {params.start:q} {params.data} --workdir {params.workdir:q}"
        " --processes {resources.processes} --device {params.device} --threads 1 --out {output:q} > {log:q} 2>&1"


# Rows of key `first` are fitted before the other trained rows.
use rule fit as fit_first with:
    output:
        model("first"),
    priority: 10


# Fits without training take minutes and one process, so that they come before all that train.
use rule fit as fit_untrained with:
    output:
        model("untrained"),
    priority: 20
    threads: 1
    resources:
        mem_mb=RESOURCES["mem_mb"],
        runtime=RESOURCES["runtime"],
        gpu=GPU,
        processes=1,


use rule fit_untrained as fit_started with:
    output:
        model("started"),
