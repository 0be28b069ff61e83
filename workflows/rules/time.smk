"""Times of a row over the dense model, both measured in turn in one process."""


rule time:
    input:
        model=f"{RUN}/model",
        base=base_models,
        backbone=backbone,
        texts=SUITE.timing_texts,
        code=watched(SUITE.timing_code()),
    output:
        f"{RUN}/speed.json",
    log:
        f"{LOG}/time.log",
    benchmark:
        f"{LOG}/time.tsv"
    # Models that are deleted once scored are timed before; models that stay, after all fits.
    priority: -1 if SUITE.config["keep_models"] is True else 29
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=RESOURCES["mem_mb"],
        runtime=RESOURCES["runtime"],
        gpu=GPU,
    params:
        run=commands.timing(SUITE),
        fit=lambda wildcards: commands.numbers_of_fit(SUITE, job(wildcards)),
        device=DEVICE,
    message:
        f"{RUN_NAME}: time over dense{TIMED}"
    shell:
        "python -m workflows.steps.time --model {input.model:q} --texts {input.texts:q} {params.run}"
        " --device {params.device} --threads {threads} --out {output:q} > {log:q} 2>&1"
