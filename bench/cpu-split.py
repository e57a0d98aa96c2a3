#!/usr/bin/env python3
"""What the CPU time of a worker goes into, whether the parts add up, and what telling it costs.

Under one steady load the split is switched on and off in turns of half a second; what the worker's thread
uses in one is compared with the next, so that what else the machine does falls on both alike. Then the
split is left on for a while and set beside what the kernel says of the thread. See docs/cpu-split.md.
"""
import argparse
import json
import math
import statistics
import sys
import time
import urllib.request
from pathlib import Path

sys.dont_write_bytecode = True
from kit import load, report  # noqa: E402 (after the line above, which keeps the tree clean)
from kit.process import ROOT, fail, threads  # noqa: E402
from kit.servers import ADMIN_PORT, Trapezoid, machine  # noqa: E402

# Calls a second that keep one worker about half busy.
RATES = {"stateless": 9_000, "transaction": 6_000, "digest": 5_000, "tcp": 7_000, "tls": 5_500}
STATEFUL = 34  # seconds until finished transactions begin to end
SPARE = 15  # seconds of load more than are measured: switching takes its time too


def ask(token, method, body=None):
    request = urllib.request.Request(
        f"http://127.0.0.1:{ADMIN_PORT}/api/v1/cpu-split", method=method,
        data=json.dumps(body).encode() if body else None, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as page:
        return json.load(page)


def used(server):
    """CPU seconds of the worker."""
    return sum(seconds for name, seconds in threads(server.process.pid) if name.startswith("worker-"))


def share(server, token, on, seconds):
    """Part of a core that the worker uses with the split switched on or off."""
    ask(token, "PUT", {"on": on})
    began, before = time.monotonic(), used(server)
    time.sleep(seconds)
    after, ended = used(server), time.monotonic()
    return (after - before) / (ended - began)


def one(scenario, options, generator, work):
    """All that is measured of one scenario."""
    rate = options.rate or RATES[scenario]
    server, caller = Trapezoid(scenario, work), None
    try:
        load.warm_up(generator, scenario, rate, options.warm or (4 if scenario == "stateless" else STATEFUL))
        token = next((work / "trapezoid").rglob("admin.token")).read_text().strip()
        seconds = 2 * options.pairs * options.window + options.seconds + SPARE
        caller = load.start_generator(generator, work, scenario, rate, math.ceil(seconds))
        time.sleep(2)
        pairs = []
        for number in range(options.pairs):
            order = (False, True) if number % 2 == 0 else (True, False)
            pair = {on: share(server, token, on, options.window) for on in order}
            pairs.append((pair[False], pair[True]))
        ask(token, "PUT", {"on": False})
        ask(token, "PUT", {"on": True})
        before = used(server)
        time.sleep(options.seconds)
        split, after = ask(token, "GET"), used(server)
        caller.child.wait(60)
        result = json.loads(caller.log.read_text().splitlines()[-1])
    finally:
        for started in (caller, server):
            if started:
                started.stop()
    costs = [100 * (on / off - 1) for off, on in pairs]
    quarters = statistics.quantiles(costs, n=4) if len(costs) > 1 else [costs[0]] * 3
    return {
        "scenario": scenario, "rate": rate, "off": statistics.mean(off for off, _ in pairs),
        "cost": [round(value, 2) for value in quarters], "turns": split["workers"][0]["turns_measured"],
        "told": split["workers_cpu_seconds"] / (after - before),
        "done": result["done"] / max(1, result["started"]),
        "parts": {part["component"]: part["share_percent"] for part in split["components"]},
    }


def tables(rows):
    costs = [["scenario", "calls/s", "worker, off", "on against off: median (quartiles)", "parts / thread",
              "turns measured"]]
    for row in rows:
        low, middle, high = row["cost"]
        costs.append([row["scenario"], str(row["rate"]), f"{100 * row['off']:.0f} %",
                      f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})", f"{row['told']:.3f}", str(row["turns"])])
    parts = [["component", *(row["scenario"] for row in rows)]]
    for name in rows[0]["parts"]:
        parts.append([name, *(f"{row['parts'][name]:.1f} %" for row in rows)])
    return costs, parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", default=list(RATES), type=lambda text: text.split(","))
    parser.add_argument("--rate", type=float, help="calls a second, instead of each scenario's own")
    parser.add_argument("--pairs", type=int, default=40, help="of on and off")
    parser.add_argument("--window", type=float, default=0.5, help="seconds of each")
    parser.add_argument("--seconds", type=float, default=20, help="of the split that is shown")
    parser.add_argument("--warm", type=float, help=f"seconds of load before (4; {STATEFUL} where state is kept)")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench")
    options = parser.parse_args()
    unknown = [name for name in options.scenarios if name not in RATES]
    if unknown:
        fail(f"no scenario {unknown[0]}; there are {', '.join(RATES)}")
    work = load.workspace(options.out)
    generator, rows = load.build_generator(work), []
    for scenario in options.scenarios:
        rows.append(one(scenario, options, generator, work))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(machine())
    for table in tables(rows):
        print(f"\n{report.render(table, options.markdown)}")


if __name__ == "__main__":
    main()
