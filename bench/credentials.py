#!/usr/bin/env python3
"""Authenticated calls a second with the subscribers in a MariaDB that is some milliseconds away.

The server is pinned to CPU 0; MariaDB, the delay relay (`trapezoid relay`) and the generator to CPU 1.
Every call is challenged, its credentials are looked up (nothing is cached), and it is relayed with state.
A setting's peak is the highest rate found at which less than 1 % of the calls fail and 99 % of the calls
are answered within a quarter of a second: before anybody sends again, and before a queue that grows could hide. See bench/README.md.
"""
import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
from kit import load, report  # noqa: E402 (after the line above, which keeps the tree clean)
from kit.process import ROOT, cpu, fail, find, run  # noqa: E402
from kit.servers import (DB_PORT, GENERATOR_CPU, SERVER_CPU, Kamailio, MariaDb, Trapezoid,  # noqa: E402
                         kamailio_version, listens, machine, metrics, server_binary, total)

RELAY_PORT = DB_PORT + 1
URL = f"mysql://sip:sip@127.0.0.1:{RELAY_PORT}/sipbench"
SINGLES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
BATCHES = [2, 4, 8, 16, 32, 64, 128]
GRID = [2, 4, 8, 16, 32, 64]
# The paper's (figures 4, 9 and 13, table 1), where it gives a number.
PAPER = {"single 4": 130, "single 512": 9000, "fixed 1x64": 1366, "fixed 32x16": 12100}
STEP = 1.07
TOO_LATE_MS = 250
MOST = 24_000  # what the generator, the relay and the database leave room for on one CPU


class DelayRelay:
    """`trapezoid relay`, asked for its counters by its standard input."""

    def __init__(self, work, delay_ms):
        words = [find("taskset"), "-c", GENERATOR_CPU, server_binary(), "relay",
                 "--listen", f"127.0.0.1:{RELAY_PORT}", "--target", f"127.0.0.1:{DB_PORT}", "--delay", f"{delay_ms}ms"]
        self.child = subprocess.Popen([*map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=open(work / "relay.log", "w"), text=True, start_new_session=True)
        self.pid = self.child.pid
        deadline = time.monotonic() + 10
        while not listens("tcp", RELAY_PORT):
            if self.child.poll() is not None or time.monotonic() > deadline:
                fail(f"the relay did not start: {(work / 'relay.log').read_text()}")
            time.sleep(0.05)

    def counters(self):
        self.child.stdin.write("stats\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())

    def stop(self):
        self.child.terminate()
        self.child.wait(10)


class Setting:
    """A server with one way of looking credentials up."""

    def __init__(self, name, connections, mode="single", batch=1, server="trapezoid", guess=0):
        self.name, self.connections, self.mode, self.batch, self.server = name, connections, mode, batch, server
        self.guess = guess

    def lines(self):
        return (f'connections = {self.connections}\nmode = "{self.mode}"\nmax_batch = {self.batch}\n'
                f"max_wait_ms = 5\ncache_entries = 0\ndeadline_ms = 3000")

    def start(self, work):
        if self.server == "kamailio":
            return Kamailio("digest", work, children=self.connections, db_port=RELAY_PORT)
        server = Trapezoid("digest", work, credentials=(URL, self.lines()))
        deadline = time.monotonic() + 30
        while total(metrics(), "credential_connections") < self.connections:
            if time.monotonic() > deadline:
                fail(f"{self.name}: not all connections came up")
            time.sleep(0.1)
        return server


class Bench:
    def __init__(self, options, work):
        self.options, self.work, self.rows = options, work, []
        self.generator, self.predicted = load.build_generator(work), {}
        self.database = MariaDb(work, connections=1200)
        try:
            self.relay = DelayRelay(work, options.rtt / 2)
        except BaseException:
            self.database.stop()
            raise

    def stop(self):
        self.relay.stop()
        self.database.stop()

    def look(self, setting, server, rate, seconds, what):
        """One run at one rate."""
        ours = setting.server == "trapezoid"
        counted = (lambda: {name: total(metrics(), name) for name in (
            "credential_batches", "credential_batch_rows", "credential_batch_busy_microseconds")}) if ours else dict
        sizes, wire, relay_cpu = counted(), self.relay.counters(), cpu(self.relay.pid)[0]
        row = load.measure(server, self.database, self.generator, "digest", rate, seconds)
        after, wire_after = counted(), self.relay.counters()
        done = max(1, row["done"])
        row.update(setting=setting.name, connections=setting.connections, mode=setting.mode, batch=setting.batch,
                   server=setting.server, what=what, rtt=self.options.rtt,
                   relay_us=round((cpu(self.relay.pid)[0] - relay_cpu) * 1e6 / done, 2))
        row["good"] = row["kept_up"] and row["p99_ms"] <= TOO_LATE_MS
        for way in ("to_target", "to_client"):
            gone = {key: wire_after[way][key] - wire[way][key] for key in ("bytes", "segments")}
            row[f"{way}_bytes"] = round(gone["bytes"] / done, 1)
            row[f"{way}_wire"] = round((gone["bytes"] + 66 * gone["segments"]) / done, 1)
        if ours:
            batches = after["credential_batches"] - sizes["credential_batches"]
            if batches:
                row["mean_batch"] = round((after["credential_batch_rows"] - sizes["credential_batch_rows"]) / batches, 2)
                row["batch_ms"] = round((after["credential_batch_busy_microseconds"]
                                         - sizes["credential_batch_busy_microseconds"]) / batches / 1e3, 2)
        self.rows.append(row)
        with open(self.work / "credentials.jsonl", "a") as out:
            out.write(json.dumps(row) + "\n")
        print(f"{what:8} {setting.name:16} {row['rate']:6}/s done {100 * row['done'] / max(1, row['started']):6.2f} % "
              f"p50 {row['p50_ms']:7.1f} p99 {row['p99_ms']:7.1f} ms, CPU {row['utilisation']:.2f} "
              f"(generator {row['generator_utilisation']:.2f}), batch {row.get('mean_batch', 1):5.1f}"
              f"{'' if row['good'] else '  over'}", file=sys.stderr, flush=True)
        return row

    def peak(self, setting):
        """The highest good rate: up from a good one or down from a bad one, by STEP, until the other is met."""
        server = setting.start(self.work)
        try:
            load.warm_up(self.generator, "digest", min(2000, setting.guess), 2)
            rate, best, bad = min(MOST, setting.guess), None, None
            for _ in range(self.options.looks):
                row = self.look(setting, server, rate, self.options.seconds, "look")
                if row["good"]:
                    best = row if best is None or row["rate"] > best["rate"] else best
                    rate = row["rate"] * STEP
                else:
                    bad = row["rate"]
                    rate = bad / STEP
                    time.sleep(3.5)  # what waits for the database gives up
                if best and bad or row["good"] and row["rate"] >= MOST:
                    break
            return best
        finally:
            server.stop()

    def predict(self):
        """What `trapezoid plan auth` says of every setting, from batches that it sends now; the CPU of a call is
        that of a run of this server."""
        def cost(setting, rate):
            server = setting.start(self.work)
            try:
                load.warm_up(self.generator, "digest", rate, 4)
                return self.look(setting, server, rate, 6, "cost")
            finally:
                server.stop()

        # The database's CPU for a batch, F + R·b, from a run of ones and one of many.
        one = cost(Setting("single 128", 128), 1500)
        many = cost(Setting("adaptive 8", 8, "adaptive", 128), 6000)
        size = many["mean_batch"]
        fixed = (one["database_us"] - many["database_us"]) * size / (size - 1)
        config = self.work / "trapezoid/trapezoid.toml"
        words = [server_binary(), "plan", "auth", "--calibrate", "--config", config, "--rtt", f"{self.options.rtt}ms",
                 "--target", 1000, "--max-connections", 512, "--max-batch", 128, "--cpu-per-call", f"{many['us']}us",
                 # What is late is the relay, not the database: how many batches it works on is no limit here.
                 "--db-cores", 64, "--db-cpu-fixed", f"{64 * fixed:.0f}us",
                 "--db-cpu-per-row", f"{64 * (one['database_us'] - fixed):.0f}us", "--json"]
        plan = json.loads(run([find("taskset"), "-c", SERVER_CPU, *map(str, words)], timeout=120))
        self.predicted = {(cell["connections"], cell["max_batch"]): cell["peak_per_s"] for cell in plan["grid"]}
        (self.work / "plan.json").write_text(json.dumps(plan))
        print(f"plan: {plan['batch']['fixed_us']:.0f} + {plan['batch']['per_row_us']:.1f} us a batch", file=sys.stderr)

    def guess(self, connections, batch):
        known = self.predicted.get((connections, batch))
        return 0.97 * (known or min(0.5 * MOST, connections * batch / (self.options.rtt + 0.7 + 0.012 * batch) * 1e3))

    def of(self, mode, connections, batch, name):
        return Setting(name, connections, mode, batch, guess=self.guess(connections, batch))

    def singles(self):
        return [self.of("single", p, 1, f"single {p}") for p in SINGLES]

    def fixed(self):
        return [self.of("fixed", 1, b, f"fixed 1x{b}") for b in BATCHES]

    def grid(self):
        return [self.of("fixed", p, b, f"fixed {p}x{b}") for p in self.options.grid for b in self.options.grid]

    def adaptive(self):
        return [self.of("adaptive", p, 128, f"adaptive {p}") for p in (1, 2, 8, 32)]

    def kamailio(self):
        return [Setting(f"kamailio {n}", n, server="kamailio", guess=max(30, min(1800, 0.9 * n * 31))) for n in (4, 32, 128)]

    def rare(self):
        """At one call a second, then at ten: what looking up adds to the first answer."""
        for name, mode, batch in (("adaptive 8", "adaptive", 128), ("single 8", "single", 1), ("fixed 8x16", "fixed", 16)):
            setting = Setting(name, 8, mode, batch, guess=10)
            server = setting.start(self.work)
            try:
                self.look(setting, server, 1, 30, "rare")
            finally:
                server.stop()

    def duel(self, names):
        """Two settings at one rate after the other, in turn: medians of what each carries."""
        settings = {setting.name: setting for part in (self.singles, self.fixed, self.grid, self.adaptive) for setting in part()}
        for _ in range(self.options.rounds):
            for name in names:
                if name not in settings:
                    fail(f"no setting {name}")
                setting = settings[name]
                setting.guess = self.options.start or setting.guess
                best = self.peak(setting)
                if best:
                    self.rows.append({**best, "what": "duel"})


def peaks(rows):
    best = {}
    for row in rows:
        if row["what"] == "look" and row["good"] and row["rate"] > best.get(row["setting"], {"rate": 0})["rate"]:
            best[row["setting"]] = row
    return best


def table(best, where, predicted):
    head = ["setting", "calls/s", "plan", "paper", "p50 ms", "p99 ms", "batch", "bytes to and from the database a call (on the wire)",
            "CPU server µs", "database µs"]
    lines = [where, "", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for name, row in best.items():
        lines.append("| " + " | ".join(map(str, [
            name, row["rate"], round(predicted.get((row["connections"], row["batch"]), 0)) or "–", PAPER.get(name, "–"), row["p50_ms"], row["p99_ms"], row.get("mean_batch", 1),
            f"{row['to_target_bytes']:.0f} + {row['to_client_bytes']:.0f} ({row['to_target_wire']:.0f} + {row['to_client_wire']:.0f})",
            row["us"], row.get("database_us", "–")])) + " |")
    off = [row["rate"] / predicted[key] - 1 for row in best.values() if row["server"] != "kamailio"
           for key in [(row["connections"], row["batch"])] if key in predicted and row["mode"] != "adaptive"]
    if off:
        lines += ["", f"Measured beside plan: {100 * min(off):+.0f} % to {100 * max(off):+.0f} %; "
                  f"{sum(abs(x) <= 0.15 for x in off)} of {len(off)} settings within 15 %."]
    single = best.get("single 64") or next((row for name, row in best.items() if name.startswith("single")), None)
    for name, row in best.items():
        if single and name.startswith("adaptive"):
            def both(r):
                return r["to_target_wire"] + r["to_client_wire"]
            lines += ["", f"{name}: {100 * (1 - both(row) / both(single)):.1f} % less on the wire for a call than {single['setting']}."]
    grid = {name: row["rate"] for name, row in best.items() if row["mode"] == "fixed"}
    if grid:
        winner = max(grid, key=grid.get)
        for name, row in best.items():
            if name.startswith("adaptive"):
                lines += ["", f"{name} carries {100 * row['rate'] / grid[winner]:.0f} % of the best fixed setting ({winner}, {grid[winner]}/s)."]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="predict,adaptive,singles,fixed,grid,kamailio,rare", type=lambda text: text.split(","))
    parser.add_argument("--rtt", type=float, default=30, help="milliseconds to the database and back")
    parser.add_argument("--seconds", type=float, default=5, help="of each run")
    parser.add_argument("--looks", type=int, default=6, help="runs for each setting, at most")
    parser.add_argument("--grid", default=GRID, type=lambda text: [int(n) for n in text.split(",")],
                        help="connections and batches of the grid")
    parser.add_argument("--duel", type=lambda text: text.split(","), help="these settings in turn, e.g. 'adaptive 8,fixed 32x16'")
    parser.add_argument("--start", type=float, help="first rate of a duel")
    parser.add_argument("--rounds", type=int, default=3, help="of a duel")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench")
    options = parser.parse_args()
    work = load.workspace(options.out)
    (work / "credentials.jsonl").unlink(missing_ok=True)
    bench = Bench(options, work)
    try:
        if options.duel:
            bench.duel(options.duel)
        for part in [] if options.duel else options.parts:
            if part in ("rare", "predict"):
                getattr(bench, part)()
                continue
            if part not in ("adaptive", "singles", "fixed", "grid", "kamailio"):
                fail(f"no part {part}")
            for setting in getattr(bench, part)():
                bench.peak(setting)
    finally:
        bench.stop()
    where = f"{machine()}; {kamailio_version()}; database {options.rtt:g} ms away"
    text = table(peaks(bench.rows), where, bench.predicted)
    (work / "credentials.md").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
