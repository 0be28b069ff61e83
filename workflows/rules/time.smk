"""What a row takes on the clock over the dense model, in turn with it in one process."""

# A model that goes once it is scored is made again where a task is added; its time is known.
STAYS = SUITE.config["keep_models"] is True


rule time:
    input:
        model=f"{RUN}/model" if STAYS else ancient(f"{RUN}/model"),
        backbone=backbone,
        texts=SUITE.timing_texts,
        code=watched(SUITE.timing_code()),
    output:
        f"{RUN}/speed.json",
    log:
        f"{LOG}/time.log",
    # Before models go that are kept until they are scored; behind all fits where they stay.
    priority: -1 if STAYS else 29
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=RESOURCES["mem_mb"],
        runtime=RESOURCES["runtime"],
        gpu=GPU,
    params:
        run=commands.timing(SUITE),
        device=DEVICE,
    message:
        f"{RUN_NAME}: time over dense{TIMED}"
    shell:
        "python -m workflows.steps.time --model {input.model} --texts {input.texts} {params.run}"
        " --device {params.device} --threads {threads} --out {output} > {log} 2>&1"
