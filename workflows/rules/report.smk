"""Tables, figures and the page, from records alone."""


rule report:
    input:
        records=[f"{job.folder}/record.json" for job in SUITE.jobs],
        checked=CHECKED,
        code=watched(SUITE.report_code()),
    output:
        page="reports/{suite}/index.html",
        table=report(
            "reports/{suite}/tables/retain.csv",
            caption="../report/retain.rst",
            category="Tables",
        ),
        figures=report(
            expand(
                "reports/{{suite}}/figures/{name}.png",
                name=["retain_over_skip", "scores_per_task", "executed_per_layer"],
            ),
            caption="../report/figures.rst",
            category="Figures",
        ),
    log:
        "results/{suite}/logs/report.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        results="results/{suite}",
        out="reports/{suite}",
    shell:
        "python -m workflows.steps.report --results {params.results} --out {params.out} > {log} 2>&1"
