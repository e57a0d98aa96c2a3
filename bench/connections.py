#!/usr/bin/env python3
"""What connections cost: memory, work for each message, attackers, handshakes, a restart.

  memory      bytes for each idle connection: TCP, TLS 1.3 and 1.2, WebSocket over TLS
  messages    CPU for each message with few and with many idle connections
  attackers   p99 of others' calls without and with slow and deaf clients; memory meanwhile
  handshakes  CPU of the server for each full and resumed handshake, beside what it takes in memory
  storm       all clients come back at once after a restart

See bench/README.md for what the figures mean and what this needs.
"""
import argparse
import json
import signal
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
from kit import connections as tables, load, report  # noqa: E402 (after the line above, which keeps the tree clean)
from kit.callgrind import Callgrind  # noqa: E402
from kit.process import ROOT, cpu, fail, memory  # noqa: E402
from kit.servers import SERVER_CPU, kamailio_version, machine, metrics, total  # noqa: E402
from kit.streams import SPARE, Crowd, KamailioListening, Listening, descriptors, kernel  # noqa: E402

MEBIBYTE = 1 << 20
# What a listener speaks, and what the crowd is told besides.
KINDS = {"tcp": ("tcp", {}), "tls": ("tls", {}), "tls1.2": ("tls", {"tls12": True}), "ws": ("ws", {}),
         "wss": ("wss", {})}
MESSAGES = 6  # relayed for each call


def say(row):
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def servers(options, transport):
    """What is measured with this transport; Kamailio is not asked for WebSocket."""
    return [Listening, KamailioListening] if options.kamailio and transport in ("tcp", "tls") else [Listening]


def stands(server):
    """Connections that ours says it has; Kamailio is not asked."""
    return int(total(metrics(), "connections")) if server.name == "trapezoid" else None


# ------------------------------------------------------------------ idle connections


def memory_part(options, work):
    rows = []
    for kind in options.transports:
        transport, more = KINDS[kind]
        for make in servers(options, transport):
            server = make(work, transport)
            try:
                # Code and tables that the first connections bring in are no part of the others; what
                # these leave free for the others is little.
                with Crowd(work, "idle", transport, count=20, **more) as few:
                    few.ready()
                    few.results()
                time.sleep(2)
                before, slab = memory(server.process.pid), kernel()
                with Crowd(work, "idle", transport, count=options.count, **more) as crowd:
                    there = crowd.ready(900)
                    time.sleep(options.settle)
                    most, more_slab, known = memory(server.process.pid), kernel(), stands(server)
                    said = crowd.results()[-1]
                time.sleep(options.settle)
                after, left = memory(server.process.pid), stands(server)
            finally:
                server.stop()
            rows.append(say({
                "part": "memory", "server": server.name, "kind": kind, "asked": options.count, "there": there,
                "known": known, "closed": said["closed"], "left": left,
                "bytes_each": round((most - before) / max(1, there)),
                "slab_each": round((more_slab[0] - slab[0]) / max(1, there)),
                "buffers_each": round((more_slab[1] - slab[1]) / max(1, there)),
                "before_mib": round(before / MEBIBYTE, 1), "most_mib": round(most / MEBIBYTE, 1),
                "after_mib": round(after / MEBIBYTE, 1), "opened_in_s": said["seconds"]}))
    return rows


# ------------------------------------------------------------------ work for each message


def busy_rate(options, generator, work):
    """Calls a second that keep the server busy for about 70 % of its core."""
    if options.rate:
        return options.rate
    server, rate = Listening(work, "tls"), 2000
    try:
        for _ in range(3):  # the price of a call falls as the core fills
            row = load.measure(server, None, generator, "tcp", rate, min(3, options.seconds))
            rate = min(20_000, 0.7e6 / row["us"])
    finally:
        server.stop()
    print(f"calls over one TCP connection: {rate:.0f}/s", file=sys.stderr)
    return rate


def messages_part(options, work):
    generator, rows = load.build_generator(work), []
    if "instructions" in options.how:
        rows += [instructions(options, generator, work, count) for count in (options.few, options.count)]
    if "cpu" not in options.how:
        return rows
    rate = busy_rate(options, generator, work)
    for turn in range(options.rounds):
        for count in (options.few, options.count):
            server = Listening(work, "tls")
            try:
                with Crowd(work, "idle", "tls", count=count) as crowd:
                    there = crowd.ready(900)
                    load.warm_up(generator, "tcp", rate, options.warm)
                    row = load.measure(server, None, generator, "tcp", rate, options.seconds)
                    closed = crowd.results()[-1]["closed"]
            finally:
                server.stop()
            row.update(part="messages", idle=count, there=there, closed=closed, round=turn,
                       each=round(row["us"] / MESSAGES, 3), unit="µs")
            rows.append(say(row))
    return rows


def instructions(options, generator, work, count):
    """The same under callgrind: instructions of the server, its libraries included, no kernel."""
    tool = Callgrind(work)
    server = Listening(work, "tls", under=tool.words)
    try:
        with Crowd(work, "idle", "tls", count=count, threads=1) as crowd:
            there = crowd.ready(3600)
            load.generate(generator, "tcp", options.slow_rate, options.seconds / 2, 0)
            tool.zero(server.process.pid)
            said = load.generate(generator, "tcp", options.slow_rate, options.seconds, 0)
            counted = tool.count(server.process.pid)
            closed = crowd.results()[-1]["closed"]
    finally:
        server.stop()
    return say({"part": "messages", "server": server.name, "idle": count, "there": there, "closed": closed, "round": 0,
                "done": said["done"], "started": said["started"], "kept_up": said["done"] == said["started"],
                "each": round(counted / max(1, said["done"]) / MESSAGES), "unit": "instructions"})


# ------------------------------------------------------------------ attackers


def attackers_part(options, work):
    generator, rows = load.build_generator(work), []
    rate = options.rate or 2000
    server = Listening(work, options.against)
    try:
        load.warm_up(generator, "tcp", rate, options.warm)
        before, buffers = memory(server.process.pid), kernel()[1]
        for turn in range(options.rounds):
            rows.append(attacked(server, generator, rate, turn, options, {}))
            with Crowd(work, "loris", options.against, humble=True, count=options.loris) as slow, \
                    Crowd(work, "deaf", options.against, humble=True, count=options.deaf) as deaf:
                slow.ready(), deaf.ready()
                time.sleep(options.siege)
                row = attacked(server, generator, rate, turn, options, {"loris": slow, "deaf": deaf})
            row["growth_mib"] = round((row["memory"] - before) / MEBIBYTE, 1)
            row["kernel_mib"] = round((row["buffers"] - buffers) / MEBIBYTE, 1)
            rows.append(row)
            time.sleep(options.settle)
    finally:
        server.stop()
    return [say(row) for row in rows]


def attacked(server, generator, rate, turn, options, crowds):
    """One run of calls; what the attackers did meanwhile, where there are any."""
    running = load.start_generator(generator, server.home, "tcp", rate, options.seconds)
    most = buffers = 0
    while running.child.poll() is None:
        time.sleep(0.5)
        most, buffers = max(most, memory(server.process.pid)), max(buffers, kernel()[1])
    said = finished(running)
    row = {"part": "attackers", "server": server.name, "attacked": bool(crowds), "round": turn, "rate": int(rate),
           "against": options.against, "p50_ms": said["p50_ms"], "p99_ms": said["p99_ms"], "done": said["done"],
           "started": said["started"], "memory": most, "buffers": buffers}
    for name, crowd in crowds.items():
        did = crowd.results()[-1]
        row.update({f"{name}_{what}": did[what] for what in ("there", "cut", "refused")})
    return row


# ------------------------------------------------------------------ handshakes


def handshakes_part(options, work):
    rows = []
    with Crowd(work, "crypto", cpus=SERVER_CPU, seconds=min(1, options.seconds),
               certificates=work / "certificates") as crypto:
        alone = crypto.results(120)
    for row in alone:
        rows.append(say({"part": "handshakes", "server": f"memory, {row['interface']}", "version": row["version"],
                         "key": row["key"], "resumed": row["resumed"], "us": row["mean_us"], "round": 0,
                         "done": row["handshakes"]}))
    for turn in range(options.rounds):
        for make in servers(options, "tls"):
            rows.append(say(bare(make, turn, options, work)))
            for key in options.keys:
                server = make(work, "tls", key)
                try:
                    for version in ("1.3", "1.2"):
                        for resumed in (False, True):
                            row = shaken(server, version, resumed, options, work)
                            row.update(key={"p256": "P-256", "rsa": "RSA-2048"}[key], round=turn)
                            rows.append(say(row))
                finally:
                    server.stop()
    return rows


def bare(make, turn, options, work):
    """What a connection costs without a handshake."""
    server = make(work, "tcp")
    try:
        return {**shaken(server, "none", False, options, work), "key": "–", "round": turn}
    finally:
        server.stop()


def shaken(server, version, resumed, options, work):
    transport = "tcp" if version == "none" else "tls"
    more = {"tls12": True} if version == "1.2" else {}
    more |= {"resume": True} if resumed else {}
    with Crowd(work, "handshakes", transport, seconds=1, **more) as warm:
        warm.results()
    before = cpu(server.process.pid)
    with Crowd(work, "handshakes", transport, seconds=options.seconds, **more) as crowd:
        said = crowd.results()[-1]
    after = cpu(server.process.pid)
    used, done = after[0] - before[0], max(1, said["done"])
    system = (after[2] - before[2]) / max(1, after[1] - before[1] + after[2] - before[2])
    return {"part": "handshakes", "server": server.name, "version": version, "resumed": resumed,
            "us": round(1e6 * used / done, 2), "system_us": round(1e6 * used / done * system, 2), "done": said["done"],
            "failed": said["failed"], "were_resumed": said["resumed"], "per_second": said["per_second"],
            "utilisation": round(used / said["seconds"], 3), "agreed": said["agreed"]}


# ------------------------------------------------------------------ all come back at once


def storm_part(options, work):
    generator, rows = load.build_generator(work), []
    rate = options.rate or 2000
    for make in servers(options, options.against if options.against == "tcp" else "tls"):
        for turn in range(min(options.rounds, 3)):
            server = make(work, options.against)
            try:
                with Crowd(work, "storm", options.against, count=options.clients, give_up=options.give_up) as crowd:
                    remembered = crowd.ready(900)
                    server.restart()
                    # Of ours, calls beside: by TCP, as those of the attackers' part. The crowd comes amid them.
                    calls = server.name == "trapezoid" and load.start_generator(
                        generator, server.home, "tcp", rate, options.seconds)
                    time.sleep(options.seconds / 10 if calls else 0)
                    before = cpu(server.process.pid)
                    crowd.go()
                    said = crowd.results(options.give_up + 60)[-1]
                    used = cpu(server.process.pid)[0] - before[0]
                    beside = finished(calls) if calls else {}
            finally:
                server.stop()
            rows.append(say({"part": "storm", "server": server.name, "round": turn, "against": options.against,
                             "remembered": remembered, **{key: value for key, value in said.items() if key != "mode"},
                             "cpu_s": round(used, 2), "calls_rate": int(rate) if calls else 0,
                             **{f"calls_{key}": beside[key] for key in ("started", "done", "p99_ms") if calls}}))
    return rows


def finished(running):
    """What a generator says when it has ended."""
    running.child.wait()
    return json.loads(running.log.read_text().strip().splitlines()[-1])


# ------------------------------------------------------------------ the whole


PARTS = {"memory": memory_part, "messages": messages_part, "attackers": attackers_part,
         "handshakes": handshakes_part, "storm": storm_part}
# Small enough to show in a minute that everything works; the figures mean nothing.
SMOKE = dict(count=200, few=50, seconds=1.0, warm=1.0, rounds=1, settle=1.0, siege=2.0, loris=60, deaf=10, clients=100,
             rate=500.0, slow_rate=50.0)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), type=lambda t: t.split(","))
    parser.add_argument("--transports", default="tcp,tls,tls1.2,wss", type=lambda t: t.split(","),
                        help=f"of the part memory: of {', '.join(KINDS)}")
    parser.add_argument("--count", type=int, default=19_000, help="idle connections (as far as descriptors go)")
    parser.add_argument("--few", type=int, default=1_000, help="idle connections that the many are compared with")
    parser.add_argument("--rate", type=float, help="calls/s of messages (about 70 %% of a core), and beside attackers and storm (2000)")
    parser.add_argument("--rounds", type=int, default=5, help="of messages, attackers, handshakes (storm: 3)")
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--warm", type=float, default=4, help="seconds of calls before measurements of them")
    parser.add_argument("--settle", type=float, default=3, help="seconds until memory is looked at")
    parser.add_argument("--how", default="instructions,cpu", type=lambda t: t.split(","),
                        help="of the part messages: instructions (under callgrind, exact, slow), cpu (time), or both")
    parser.add_argument("--slow-rate", type=float, default=100, help="calls/s under callgrind")
    parser.add_argument("--against", default="tls", choices=("tcp", "tls", "ws", "wss"),
                        help="transport of attackers and storm")
    parser.add_argument("--loris", type=int, default=5_000)
    parser.add_argument("--deaf", type=int, default=500)
    parser.add_argument("--siege", type=float, default=35, help="seconds of attack before calls are measured")
    parser.add_argument("--keys", default="p256,rsa", type=lambda t: t.split(","), help="of the part handshakes")
    parser.add_argument("--clients", type=int, default=5_000, help="of the part storm")
    parser.add_argument("--give-up", type=float, default=120, help="seconds after which a storm is given up")
    parser.add_argument("--kamailio", action="store_true", help="Kamailio too: memory, handshakes, storm")
    parser.add_argument("--smoke", action="store_true", help="small numbers: does everything work?")
    parser.add_argument("--markdown", action="store_true", help="print tables for docs/performance.md")
    parser.add_argument("--report", action="store_true", help="measure nothing: report the rows of the last run again")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench")
    options = parser.parse_args()
    for given, known in ((options.parts, PARTS), (options.transports, KINDS), (options.keys, ("p256", "rsa")),
                         (options.how, ("instructions", "cpu"))):
        unknown = [name for name in given if name not in known]
        if unknown:
            fail(f"no {unknown[0]}; there are {', '.join(known)}")
    if options.smoke:
        vars(options).update(SMOKE)
    # The server keeps a sixteenth for connections that it opens, and calls need some, too.
    limit = (descriptors() - SPARE) * 15 // 16 - 100
    if options.count > limit:
        print(f"{descriptors()} descriptors for each process: {limit} connections, not {options.count}", file=sys.stderr)
        options.count = limit
    return options


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started ends, too
    options = arguments()
    work = load.workspace(options.out)
    file, about = work / "connections.jsonl", work / "connections.txt"
    if options.report:
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    else:
        about.write_text(f"{machine()}" + (f"; {kamailio_version()}" if options.kamailio else ""))
        rows = []
        file.write_text("")
        for part in options.parts:
            print(f"── {part}", file=sys.stderr, flush=True)
            fresh = PARTS[part](options, work)
            rows += fresh
            with open(file, "a") as out:
                out.writelines(json.dumps(row) + "\n" for row in fresh)
    if not rows:
        fail("no row to report")
    print(tables.text(rows, about.read_text(), options.markdown), end="")


if __name__ == "__main__":
    main()
