#!/usr/bin/env python3
"""CPU per call of Trapezoid beside Kamailio and a bare relay, on one core each, over loopback.

The server is pinned to CPU 0; the generator, and the database where there is one, to CPU 1. Runs
alternate between the servers; medians are compared, near each one's own peak and at one rate.
See bench/README.md for what the figures mean and what this needs.
"""
import argparse
import json
import sys
from pathlib import Path

sys.dont_write_bytecode = True
from kit import load, report  # noqa: E402 (after the line above, which keeps the tree clean)
from kit.process import ROOT, fail  # noqa: E402
from kit.servers import SCENARIOS, Kamailio, Relay, Trapezoid, kamailio_version, machine  # noqa: E402

KINDS = {kind.name: kind for kind in (Kamailio, Trapezoid, Relay)}
AIM, LOOKS = 0.78, 6  # of a core; measurements at most until a rate is found
# Finished transactions are kept for 32 s (RFC 3261 timers L and J). Until the first of them end, each
# call touches memory that was never touched before, which costs more than using some again.
WARM, WARM_WITH_STATE = 4, 34


class Bench:
    def __init__(self, options, work):
        self.options, self.work, self.rows = options, work, []
        self.generator = load.build_generator(work)

    def one(self, kind, scenario, rate, what, seconds):
        stateful = scenario in ("transaction", "digest", "tcp", "tls") and what != "look" and kind is not Relay
        warm = self.options.warm or (WARM_WITH_STATE if stateful else WARM)
        row = load.one(kind, scenario, rate, seconds, warm, self.generator, self.work)
        row["what"] = what
        self.rows.append(row)
        with open(self.work / "rows.jsonl", "a") as out:
            out.write(json.dumps(row) + "\n")
        print(report.show(row), file=sys.stderr, flush=True)
        return row

    def rate_for(self, kind, scenario):
        """The rate at which this server is busy for about AIM of its core.

        Less where the generator gives out first, or where the server loses calls although its core
        has room (because it waits for a database).
        """
        limits = SCENARIOS[scenario]
        rate, good, bad, doubted = limits["first"], 0, None, None
        for _ in range(LOOKS):  # the price of a call falls as the core fills: look again
            row = self.one(kind, scenario, rate, "look", min(4, self.options.seconds))
            if not row["kept_up"] and row["utilisation"] < report.FULL and doubted != rate:
                doubted = rate  # the host may have stalled: once more
            elif not row["kept_up"]:
                bad = rate
                rate = (good + bad) / 2 if good else bad / 2
            elif row["utilisation"] >= report.FULL + 0.02 or report.generator_full(row) or rate >= limits["most"]:
                return min(row["rate"], row["offered"])
            else:
                good = rate
                room = 0.97 / max(0.05, row["generator_utilisation"])
                rate = min(limits["most"], rate * min(room, AIM / max(0.01, row["utilisation"]), 4))
                if bad:
                    rate = min(rate, (good + bad) / 2)
                if rate < 1.05 * good:
                    break
        return good or rate

    def scenario(self, name):
        fixed = self.options.rates.get(name)
        theirs = fixed or self.rate_for(Kamailio, name)
        ours = fixed or self.rate_for(Trapezoid, name)
        for _ in range(self.options.rounds):
            self.one(Kamailio, name, theirs, "near peak", self.options.seconds)
            self.one(Trapezoid, name, ours, "near peak", self.options.seconds)
            self.one(Relay, name, ours, "floor", self.options.seconds)
            if abs(ours - theirs) > 0.02 * theirs:
                self.one(Trapezoid, name, theirs, "equal rate", self.options.seconds)


def text(rows, where, markdown):
    """The report."""
    figures = report.Figures(rows)
    if not figures.rows:
        fail("no row to report")
    notes = "\n".join(figures.notes())
    return (f"{where}\n\n{report.render(figures.table(), markdown)}\n\n"
            f"{report.render(figures.goals(), markdown)}\n\n{notes}".rstrip() + "\n")


def rates(words):
    pairs = (pair.split("=") for pair in words.split(",") if pair)
    return {name: float(rate) for name, rate in pairs}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), type=lambda t: t.split(","))
    parser.add_argument("--rates", default={}, type=rates,
                        help="fixed rates for both instead of a search, e.g. stateless=12000,tcp=8000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--warm", type=float,
                        help=f"seconds of load before each measurement ({WARM}; {WARM_WITH_STATE} where state is kept)")
    parser.add_argument("--only", choices=list(KINDS), help="smoke: one short run of one server")
    parser.add_argument("--markdown", action="store_true", help="print tables for docs/performance.md")
    parser.add_argument("--report", action="store_true", help="measure nothing: report the rows of the last run again")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench")
    options = parser.parse_args()
    unknown = [name for name in [*options.scenarios, *options.rates] if name not in SCENARIOS]
    if unknown:
        fail(f"no scenario {unknown[0]}; there are {', '.join(SCENARIOS)}")
    return options


def main():
    options = arguments()
    work = load.workspace(options.out)
    rows, about = work / "rows.jsonl", work / "machine.txt"
    if options.report:
        measured = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
        print(text(measured, about.read_text() if about.exists() else "", options.markdown), end="")
        return
    rows.unlink(missing_ok=True)
    about.write_text(f"{machine()}; {kamailio_version()}")
    bench = Bench(options, work)
    if options.only:
        for name in options.scenarios:
            rate = options.rates.get(name, SCENARIOS[name]["first"] / 4)
            bench.one(KINDS[options.only], name, rate, "smoke", options.seconds)
        return
    for name in options.scenarios:
        bench.scenario(name)
    (work / "report.md").write_text(text(bench.rows, about.read_text(), True))
    print(text(bench.rows, about.read_text(), options.markdown), end="")


if __name__ == "__main__":
    main()
