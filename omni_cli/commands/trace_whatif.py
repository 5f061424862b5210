"""`omni trace whatif`: a recorded run under another load or deployment, simulated. Starts nothing, only reads."""

import json
from typing import Annotated

import typer

from omni_cli.artifacts.run_folder import OUTPUTS
from omni_cli.commands.numbers import numbers
from omni_cli.trace.reader import TraceReader, find_trace
from omni_cli.trace.recorded_plan import recorded_plan
from omni_cli.trace.soundness import presumed_sound
from omni_cli.trace.summary import summarise

app = typer.Typer()


@app.command("whatif")
def whatif(
    run: Annotated[str, typer.Argument(metavar="RUN", help="As for `omni trace show`.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="deploy.stages.STAGE.replicas=2, .max_batch=16 and so on."),
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option("--concurrency", metavar="N[,N..]", help="Closed loop: so many callers.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="R[,R..]", help="Open loop: so many arrivals a second (Poisson).")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, max=1 << 20, help="Of each load. Default: as for `omni bench run`.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Keys arrivals and deviations.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Predict throughput, latency and queues of another load or deployment, from step times fitted to the run.

    Without --concurrency and --rate the requests come when they were recorded to come.
    """
    from omni_cli.table import stdout, table
    from omni_cli.trace import whatif_report as report
    from omni_cli.trace.whatif import Demand, simulate
    from omni_cli.trace.whatif_plan import changed_plan, measured
    from omni_cli.trace.whatif_workload import read_workload

    if requests is not None and concurrency is None and rate is None:
        raise typer.BadParameter("is of a load: give --concurrency or --rate as well", param_hint="--requests")
    callers = numbers("--concurrency", concurrency, int) if concurrency is not None else ()
    rates = numbers("--rate", rate, float) if rate is not None else ()
    demands = [Demand.of_callers(n, requests or max(8, 2 * n)) for n in callers]
    demands += [Demand.of_rate(r, requests or max(8, round(10 * r)), seed) for r in rates]
    reader = TraceReader(find_trace(run, OUTPUTS))
    with presumed_sound(reader):
        summary = summarise(reader)
    digest = summary.started.plan_digest if summary.started is not None else None
    recorded = measured(recorded_plan(reader.path, digest), summary.processes)
    plan = changed_plan(recorded, words or ())
    with presumed_sound(reader):
        workload = read_workload(reader, summary)
        as_recorded = Demand.as_recorded(workload.requests)
        again = simulate(recorded, workload, as_recorded, seed)
    found = [simulate(plan, workload, demand, seed) for demand in demands or [as_recorded]]
    fits = [f"{stage} {fit}" for stage, model in workload.models.items() for fit in model.all]
    notes = [*report.beyond(dict(workload.models)), report.NOT_MODELLED]
    if as_json:
        loads = list(map(report.document, found))
        whole = {"fits": fits, "again": report.document(again), "loads": loads, "notes": notes}
        typer.echo(json.dumps(whole, indent=2))
        return
    console = stdout()
    console.print("\n".join(fits) + "\n")
    rows = [report.row(report.recorded(summary)), report.row(again, "the same, simulated"), *map(report.row, found)]
    console.print(table(report.HEADER, rows))
    console.print()
    console.print(table(report.STAGE_HEADER, [line for outcome in found for line in report.stage_rows(outcome)]))
    console.print("\n" + "\n".join([*map(report.bottleneck, found), *notes]))
