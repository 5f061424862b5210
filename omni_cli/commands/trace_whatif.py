"""`omni trace whatif`: a recorded run under another load or deployment, simulated. Starts nothing, only reads."""

import json
from typing import Annotated

import typer

from omni_cli.artifacts.run_folder import OUTPUTS
from omni_cli.commands.numbers import numbers
from omni_cli.trace.reader import TraceReader, find_trace
from omni_cli.trace.recorded_plan import recorded_plan
from omni_cli.trace.summary import RunSummary, summarise

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
    from omni_cli.trace.whatif import Demand, simulate
    from omni_cli.trace.whatif_plan import changed_plan, measured
    from omni_cli.trace.whatif_report import HEADER, NOT_MODELLED, STAGE_HEADER, beyond, bottleneck, row, stage_rows
    from omni_cli.trace.whatif_report import document as of
    from omni_cli.trace.whatif_workload import read_workload

    reader = TraceReader(find_trace(run, OUTPUTS))
    summary = summarise(reader)
    digest = summary.started.plan_digest if summary.started is not None else None
    recorded = measured(recorded_plan(reader.path, digest), summary.processes)
    plan = changed_plan(recorded, words or ())
    workload = read_workload(reader, summary)
    callers = numbers("--concurrency", concurrency, int) if concurrency is not None else ()
    rates = numbers("--rate", rate, float) if rate is not None else ()
    demands = [Demand.of_callers(n, requests or max(8, 2 * n)) for n in callers]
    demands += [Demand.of_rate(r, requests or max(8, round(10 * r)), seed) for r in rates]
    as_recorded = Demand.as_recorded(workload.requests)
    again = simulate(recorded, workload, as_recorded, seed)
    found = [simulate(plan, workload, demand, seed) for demand in demands or [as_recorded]]
    fits = [f"{stage} {fit}" for stage, model in workload.models.items() for fit in model.all]
    notes = [*beyond(dict(workload.models)), NOT_MODELLED]
    if as_json:
        typer.echo(
            json.dumps({"fits": fits, "again": of(again), "loads": list(map(of, found)), "notes": notes}, indent=2)
        )
        return
    console = stdout()
    console.print("\n".join(fits) + "\n")
    rows = [_measured(summary), row(again, "the same, simulated"), *map(row, found)]
    console.print(table(HEADER, rows))
    console.print()
    console.print(table(STAGE_HEADER, [line for outcome in found for line in stage_rows(outcome)]))
    console.print("\n" + "\n".join([*map(bottleneck, found), *notes]))


def _measured(summary: RunSummary) -> tuple[str, ...]:
    """The run itself, in the same columns."""
    from omni_cli.trace.whatif import Demand, Outcome
    from omni_cli.trace.whatif_report import row

    ended = [request for request in summary.requests.values() if request.status == "finished"]
    outcome = Outcome(demand=Demand(name="the run itself", requests=len(ended)))
    outcome.span_ns = max(r.end_ns for r in ended) - min(r.admitted_ns for r in ended)
    for request in ended:
        outcome.total_ns.append(request.total_ns)
        for kind in ("text", "audio"):
            if (first_ns := request.first_ns(kind)) is not None:
                outcome.first_ns[kind].append(first_ns)
    return row(outcome)
