"""Tables, figures and the page, from records alone."""


rule report:
    input:
        records=[f"{job.folder}/record.json" for job in SUITE.jobs],
        noise=SUITE.noise_files(),
        speeds=SUITE.speed_files(),
        checked=CHECKED,
        between_seeds="reports/reference/headline/retain.csv",
        code=watched(SUITE.report_code()),
    output:
        page="reports/{suite}/index.html",
        tables=report(
            expand("reports/{{suite}}/tables/{name}.csv", name=FRAMES),
            caption="../report/tables.rst",
            category="Tables",
        ),
        figures=report(
            # A folder, because the records decide which figures there are.
            directory("reports/{suite}/figures"),
            patterns=["{name}.png"],
            caption="../report/figures.rst",
            category="Figures",
        ),
    log:
        "results/{suite}/logs/report.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=2000 + len(SUITE.jobs),
        runtime=10,
    params:
        results="results/{suite}",
        between_seeds=lambda _, input: os.path.dirname(input.between_seeds),
        out="reports/{suite}",
        # Not an argument: the step reads suite.json. Here so that a changed suite makes a new page.
        suite=SUITE.as_json,
    message:
        f"suite {SUITE.name}: tables, figures and page\n    makes {{output.page}}\n    log {{log}}"
    shell:
        "python -m workflows.steps.report --results {params.results:q} --out {params.out:q}"
        " --between-seeds {params.between_seeds:q} > {log:q} 2>&1"
