#!/usr/bin/env python3
"""Two workers beside one: CPU per call at the same total rate, and how the load spreads.

All calls come from one source port. Server and generator share CPUs 0 and 1 in both cases, so CPU
time of the server's threads is what counts, not how long a call took. See bench/README.md.
"""
import argparse
import json
import statistics
import sys
from pathlib import Path

sys.dont_write_bytecode = True
from kit import load, report  # noqa: E402 (after the line above, which keeps the tree clean)
from kit.process import ROOT, fail, threads  # noqa: E402
from kit.servers import Trapezoid, machine, metrics  # noqa: E402

CPUS = "0,1"
# Calls a second that keep one worker three quarters busy or more.
RATES = {"stateless": 15_000, "transaction": 11_500, "digest": 6_000, "tcp": 20_000}
GOAL = 0.9  # of one worker's efficiency: two workers then do 1.8 times the work of one


def reading(server):
    """CPU seconds of each worker's thread, and messages that each worker received."""
    seconds = {name: 0.0 for name, _ in threads(server.process.pid) if name.startswith("worker-")}
    for name, used in threads(server.process.pid):
        if name in seconds:
            seconds[name] += used
    counts = metrics()
    messages = {kind: {worker: value for (name, worker), value in counts.items() if name == kind}
                for kind in ("requests_received", "responses_received")}
    return {"cpu": {int(name.split("-")[1]): used for name, used in seconds.items()}, **messages}


def shares(before, after):
    """Per cent that each worker, in order, has of the difference."""
    differences = [after[worker] - before.get(worker, 0) for worker in sorted(after)]
    return [round(100 * value / max(sum(differences), 1e-9)) for value in differences]


def one(scenario, workers, rate, options, generator, work):
    """One measurement on a fresh, warmed-up server."""
    server = Trapezoid(scenario, work, workers=workers, cpus=CPUS)
    try:
        load.warm_up(generator, scenario, rate, options.warm, CPUS)
        before = reading(server)
        row = load.measure(server, None, generator, scenario, rate, options.seconds, CPUS)
        after = reading(server)
    finally:
        server.stop()
    row.update(what=f"{workers} workers", workers=workers,
               shares={what: shares(before[what], after[what]) for what in after})
    print(f"{report.show(row)}  shares {row['shares']}", file=sys.stderr, flush=True)
    with open(work / "workers.jsonl", "a") as out:
        out.write(json.dumps(row) + "\n")
    return row


def table(rows):
    """A row for each scenario."""
    lines = [["scenario", "rate", "one worker, µs", "two workers, µs", "work of two / one", "requests", "responses",
              "CPU of the workers", f"goal ≥ {2 * GOAL}"]]
    for scenario in dict.fromkeys(row["scenario"] for row in rows):
        mine = [row for row in rows if row["scenario"] == scenario]
        alone, both = ([row for row in mine if row["workers"] == n] for n in (1, 2))
        us = [statistics.median(row["us"] for row in some) for some in (alone, both)]
        split = {what: "/".join(str(round(statistics.median(values)))
                                for values in zip(*(row["shares"][what] for row in both))) + " %"
                 for what in both[0]["shares"]}
        gain = 2 * us[0] / us[1]
        lines.append([scenario, f"{mine[0]['offered']:,}/s", f"{us[0]:.1f}", f"{us[1]:.1f}", f"{gain:.2f}",
                      split["requests_received"], split["responses_received"], split["cpu"],
                      "yes" if gain >= 2 * GOAL else "no"])
    return lines


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", default="stateless,transaction", type=lambda t: t.split(","),
                        help="of stateless, transaction, digest, tcp (one connection each way)")
    parser.add_argument("--rate", type=float, help="calls/s, instead of the scenario's own")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--warm", type=float, default=4, help="seconds of load before each measurement")
    parser.add_argument("--markdown", action="store_true", help="print a table for docs/performance.md")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench")
    options = parser.parse_args()
    unknown = [name for name in options.scenarios if name not in RATES]
    if unknown:
        fail(f"no scenario {unknown[0]}; there are {', '.join(RATES)}")
    return options


def main():
    options = arguments()
    work = load.workspace(options.out)
    (work / "workers.jsonl").unlink(missing_ok=True)
    generator = load.build_generator(work)
    rows = []
    for scenario in options.scenarios:
        for _ in range(options.rounds):
            for workers in (1, 2):
                rate = options.rate or RATES[scenario]
                rows.append(one(scenario, workers, rate, options, generator, work))
    print(f"{machine()}\n\n{report.render(table(rows), options.markdown)}")
    for row in rows:
        if not row["kept_up"] or report.generator_full(row):
            print(f"- not to be believed: {row['scenario']}, {row['what']}: done {row['done']} of {row['started']}, "
                  f"offered {row['offered']}/s of {row['rate']}/s")


if __name__ == "__main__":
    main()
