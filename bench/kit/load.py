"""Load on a server, and what it cost: one row of figures for each run."""
import hashlib
import json
import os
import time
from pathlib import Path

from . import certificates
from .process import ROOT, Process, cpu, fail, find, run
from .servers import (CALLEE_PORT, CALLER_PORT, GENERATOR_CPU, SERVER_CPU, SIP_PORT, USERS, Kamailio, MariaDb,
                      is_register, transport)

WARM_INSIDE = 1  # seconds at the start of each measurement that its own percentiles leave out


def build_generator(work):
    binary = work / "sipgen"
    run([find("cc"), "-O2", "-o", binary, ROOT / "bench/sipgen.c", "-lssl", "-lcrypto", "-lm"])
    return binary


def generator_words(generator, scenario, rate, seconds, warm, users=USERS):
    words = [generator, "-m", "reg" if is_register(scenario) else "call", "-t", transport(scenario),
             "-r", int(rate), "-d", seconds, "-w", warm, "-D", 2, "-p", SIP_PORT, "-s", CALLEE_PORT,
             "-l", CALLER_PORT, "-c", 1, "-u", users, "-P"]
    phone = generator.parent / "certificates/phone"
    words += ["-X", f"{phone}.pem", "-K", f"{phone}.key"] if scenario == "tls" else []
    return words + (["-A"] if scenario == "digest" else [])


def generate(generator, scenario, rate, seconds, warm, cpus=GENERATOR_CPU, users=USERS):
    """Runs the generator to its end; what it says."""
    words = [find("taskset"), "-c", cpus, *generator_words(generator, scenario, rate, seconds, warm, users)]
    return json.loads(run(words, timeout=seconds + warm + 60))


def start_generator(generator, work, scenario, rate, seconds, cpus=GENERATOR_CPU, users=USERS):
    """The same beside us, as a process whose log becomes what it says."""
    return Process("sipgen", generator_words(generator, scenario, rate, seconds, 0, users), work, cpus)


def drops():
    """Datagrams that the kernel dropped at the server's port."""
    rows = Path("/proc/net/udp").read_text().splitlines()[1:]
    port = f":{SIP_PORT:04X}"
    return sum(int(row.split()[-1]) for row in rows if row.split()[1].endswith(port))


def probe_speed():
    """Milliseconds that the server's CPU needs for a fixed piece of work: a shared host varies."""
    before, block, best = os.sched_getaffinity(0), bytes(1 << 20), 1e9
    os.sched_setaffinity(0, {int(SERVER_CPU)})
    for _ in range(8):
        began = time.perf_counter()
        hashlib.md5(block).digest()
        best = min(best, time.perf_counter() - began)
    os.sched_setaffinity(0, before)
    return round(best * 1e3, 3)


def measure(server, database, generator, scenario, rate, seconds, cpus=GENERATOR_CPU):
    """One run on a warm server: microseconds of CPU for each call, and how well it kept up."""
    probe = probe_speed()
    lost, db = drops(), cpu(database.process.pid) if database else None
    before = cpu(server.process.pid)
    result = generate(generator, scenario, rate, seconds, WARM_INSIDE, cpus)
    after = cpu(server.process.pid)
    done, used = max(1, result["done"]), after[0] - before[0]
    user, system = after[1] - before[1], after[2] - before[2]
    # Stragglers keep the generator waiting up to 2 s more, in which nothing is asked of the server.
    under_load = min(result["wall"], seconds + WARM_INSIDE)
    row = {
        "scenario": scenario, "server": server.name, "rate": int(rate), "seconds": seconds,
        "offered": round(result["started"] / under_load), "started": result["started"], "done": result["done"],
        "failed": result["failed"], "us": round(used * 1e6 / done, 2),
        "user_us": round(used * 1e6 / done * user / max(1, user + system), 2),
        "system_us": round(used * 1e6 / done * system / max(1, user + system), 2),
        "utilisation": round(used / under_load, 3),
        "generator_utilisation": round(result["gen_cpu"] / under_load, 3), "late_ms": result["max_issue_lag_ms"],
        "p50_ms": result["p50_ms"], "p99_ms": result["p99_ms"],
        "retransmissions": result["rtx_uac"] + result["rtx_uas"], "drops": drops() - lost, "probe_ms": probe,
        "kept_up": result["done"] >= 0.99 * result["started"],
    }
    if database:
        row["database_us"] = round((cpu(database.process.pid)[0] - db[0]) * 1e6 / done, 2)
    return row


def warm_up(generator, scenario, rate, seconds, cpus=GENERATOR_CPU):
    """First touches of memory, and (REGISTER) the bindings that the rest refreshes."""
    calls = max(USERS, rate * seconds) if is_register(scenario) else rate * seconds
    generate(generator, scenario, rate, max(1, calls / rate), 0, cpus)


def one(kind, scenario, rate, seconds, warm, generator, work):
    """One measurement on a fresh, warmed-up server (and its database, where Kamailio has one)."""
    needs_database = kind is Kamailio and scenario in ("digest", "register-disk")
    database = server = None
    try:
        database = MariaDb(work) if needs_database else None
        server = kind(scenario, work)
        # The relay answers no challenge: it passes on the six messages of a call that has none.
        asked = "transaction" if server.name == "relay" and scenario == "digest" else scenario
        warm_up(generator, asked, rate, warm)
        row = measure(server, database, generator, asked, rate, seconds)
        row["scenario"] = scenario
        return row
    finally:
        for started in (server, database):
            if started:
                started.stop()


def workspace(path):
    """The directory of a run."""
    if (os.cpu_count() or 1) < 2:
        fail("needs two CPUs: one for the server, one for the generator")
    work = path.resolve()
    work.mkdir(parents=True, exist_ok=True)
    (work / "relay").unlink(missing_ok=True)  # built anew from what the sources are now
    certificates.make(work)
    return work
