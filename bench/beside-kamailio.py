#!/usr/bin/env python3
"""CPU per call of Trapezoid beside Kamailio, on one core each, over loopback.

The server is pinned to CPU 0; the generator, and the database where there is one, to CPU 1. Runs
alternate between the two servers; medians are compared, at equal rates and near each one's peak.
See bench/README.md for what the figures mean and what this needs.
"""
import argparse
import json
import os
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import time
from hashlib import md5
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SIP_PORT, CALLEE_PORT, CALLER_PORT, DB_PORT, ADMIN_PORT = 15060, 15070, 15090, 13306, 18080
USERS = 10_000
SERVER_CPU, GENERATOR_CPU = "0", "1"
TARGET_UTILISATION = 0.75

# kamailio: what -A defines; first: calls/s of the first look; most: what the generator can offer.
SCENARIOS = {
    "stateless": dict(kamailio=["STATELESS"], first=4000, most=30_000, unit="call"),
    "transaction": dict(kamailio=["TRANSACTION"], first=3000, most=25_000, unit="call"),
    "digest": dict(kamailio=["TRANSACTION", "DIGEST"], first=800, most=18_000, unit="call"),
    "tcp": dict(kamailio=["TRANSACTION", "OVER_TCP"], first=3000, most=20_000, unit="call"),
    "register-memory": dict(kamailio=["REGISTRAR"], first=10_000, most=90_000, unit="REGISTER"),
    "register-disk": dict(kamailio=["REGISTRAR", "ON_DISK"], first=500, most=60_000, unit="REGISTER"),
}


def fail(message):
    sys.exit(f"beside-kamailio: {message}")


def find(program):
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    found = shutil.which(program, path=path)
    return found or fail(f"{program} is missing: `cargo xtask setup --bench` installs it")


def run(words, **options):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, **options)
    if done.returncode != 0:
        fail(f"{words[0]} failed ({done.returncode}):\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


# ------------------------------------------------------------------ processes


def tree(root):
    """Process ids of `root` and all that descend from it."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(entry))
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def cpu(root):
    """(seconds on a CPU by schedstat, user ticks, system ticks) of a process and its descendants."""
    nanoseconds = user = system = 0
    for pid in tree(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            user, system = user + int(fields[11]), system + int(fields[12])
            for task in os.listdir(f"/proc/{pid}/task"):
                nanoseconds += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
        except OSError:
            pass
    return nanoseconds / 1e9, user, system


def drops():
    """Datagrams that the kernel dropped at the server's port."""
    rows = Path("/proc/net/udp").read_text().splitlines()[1:]
    port = f":{SIP_PORT:04X}"
    return sum(int(row.split()[-1]) for row in rows if row.split()[1].endswith(port))


class Process:
    """A child that ends with us; its output goes to a file."""

    def __init__(self, name, words, work, cpu_list):
        self.name, self.log = name, work / f"{name}.log"
        with open(self.log, "w") as out:
            self.child = subprocess.Popen(
                ["taskset", "-c", cpu_list, *map(str, words)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=work, start_new_session=True)
        self.pid = self.child.pid

    def wait_for(self, ready, seconds=30):
        deadline = time.monotonic() + seconds
        while not ready():
            if self.child.poll() is not None or time.monotonic() > deadline:
                log = self.log.read_text(errors="replace")[-3000:]
                self.stop()
                fail(f"{self.name} did not start:\n{log}")
            time.sleep(0.05)

    def stop(self):
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.pid, signal.SIGKILL)  # its own session: only what we started
                self.child.wait()


def answers(transport):
    """Whether the SIP port takes a message (udp: answers one)."""
    if transport == "tcp":
        with socket.socket() as probe:
            probe.settimeout(0.3)
            return probe.connect_ex(("127.0.0.1", SIP_PORT)) == 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(0.3)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        text = (
            f"OPTIONS sip:127.0.0.1:{SIP_PORT} SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:{port};branch=z9hG4bKprobe{port}\r\n"
            f"Max-Forwards: 0\r\nFrom: <sip:probe@bench>;tag=1\r\nTo: <sip:127.0.0.1:{SIP_PORT}>\r\n"
            f"Call-ID: probe{port}\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n")
        try:
            probe.sendto(text.encode(), ("127.0.0.1", SIP_PORT))
            return bool(probe.recv(2048))
        except OSError:
            return False


# ------------------------------------------------------------------ the two servers


class Trapezoid:
    name = "trapezoid"

    def __init__(self, scenario, work):
        binary = os.environ.get("TRAPEZOID_BIN") or ROOT / "target/release/trapezoid"
        if not Path(binary).exists():
            fail(f"{binary} is missing: run `make bench`, or cargo build --release, or set TRAPEZOID_BIN")
        self.process = None
        self.transport = "tcp" if scenario == "tcp" else "udp"
        home = work / "trapezoid"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        config = home / "trapezoid.toml"
        config.write_text(self.configuration(scenario))
        if scenario == "digest":
            run([binary, "user", "add", "first@bench", "--password-stdin", "--config", config],
                input="first\n", cwd=home)
            self.fill(home / "subscribers.db")
        self.process = Process("trapezoid", [binary, "serve", "--config", config], home, SERVER_CPU)
        self.process.wait_for(lambda: answers(self.transport))

    def configuration(self, scenario):
        durability, location = ("commit", "sqlite:location.db")
        if scenario == "register-memory":
            durability, location = ("memory", "memory:")
        methods = '"INVITE"' if scenario == "digest" else ""
        suffix = ";transport=tcp" if self.transport == "tcp" else ""
        state = "stateless" if scenario == "stateless" else "transaction"
        return f"""
[server]
workers = 1
data_dir = "data"
drain_s = 1
[[listen]]
transport = "{self.transport}"
address = "127.0.0.1:{SIP_PORT}"
[subscribers]
url = "sqlite:subscribers.db"
[location]
url = "{location}"
durability = "{durability}"
[[domain]]
name = "bench"
[domain.auth]
methods = [{methods}]
[state]
mode = "{state}"
[[route]]
when = {{ method = ["INVITE"] }}
do = {{ relay = "sip:127.0.0.1:{CALLEE_PORT}{suffix}" }}
[admin]
listen = "127.0.0.1:{ADMIN_PORT}"
"""

    @staticmethod
    def fill(database):
        with sqlite3.connect(database) as db:
            rows = ((f"user{n:05d}", "bench", ha1(n)) for n in range(USERS))
            db.executemany("INSERT INTO subscriber (username, domain, ha1) VALUES (?, ?, ?)", rows)

    def stop(self):
        self.process.stop()


class Kamailio:
    name = "kamailio"

    def __init__(self, scenario, work):
        self.transport = "tcp" if scenario == "tcp" else "udp"
        home = work / "kamailio"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        defines = SCENARIOS[scenario]["kamailio"] + [
            f"SIP_PORT={SIP_PORT}",
            f'CALLEE="sip:127.0.0.1:{CALLEE_PORT}{";transport=tcp" if scenario == "tcp" else ""}"',
            f'DATABASE="mysql://sip:sip@127.0.0.1:{DB_PORT}/sipbench"']
        words = [find("kamailio"), "-DD", "-E", "-f", HERE / "kamailio/beside.cfg", "-Y", home, "-P", home / "pid",
                 "-m", "4096", "-M", "32", "-x", "fm", "-X", "fm"]  # its default allocator is three times slower
        for define in defines:
            words += ["-A", define]
        self.process = Process("kamailio", words, home, SERVER_CPU)
        self.process.wait_for(lambda: answers(self.transport))

    def stop(self):
        self.process.stop()


def ha1(number):
    return md5(f"user{number:05d}:bench:pass{number:05d}".encode()).hexdigest()


class MariaDb:
    """A private server on a data directory and port of its own."""

    def __init__(self, work):
        home = work / "mariadb"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        user = ["--user=root"] if os.geteuid() == 0 else []
        data, self.socket = home / "data", home / "socket"
        run([find("mariadb-install-db"), "--no-defaults", f"--datadir={data}", "--skip-test-db",
             "--auth-root-authentication-method=normal", *user])
        self.process = Process("mariadbd", [
            find("mariadbd"), "--no-defaults", f"--datadir={data}", f"--socket={self.socket}", *user,
            f"--port={DB_PORT}", "--bind-address=127.0.0.1", f"--pid-file={home / 'pid'}",
            "--innodb-buffer-pool-size=256M", "--max-connections=50", "--performance-schema=OFF"],
            home, GENERATOR_CPU)
        self.process.wait_for(lambda: self.socket.exists())
        time.sleep(0.5)
        self.sql(self.schema())

    def sql(self, text):
        run([find("mariadb"), "--no-defaults", f"--socket={self.socket}", "-uroot"], input=text)

    @staticmethod
    def schema():
        tables = Path("/usr/share/kamailio/mysql/usrloc-create.sql")
        if not tables.exists():
            fail(f"{tables} is missing: it comes with kamailio-mysql-modules")
        rows = ",".join(f"('user{n:05d}','bench','{ha1(n)}')" for n in range(USERS))
        return f"""
CREATE DATABASE sipbench; USE sipbench;
CREATE TABLE version (table_name VARCHAR(32) PRIMARY KEY, table_version INT UNSIGNED NOT NULL DEFAULT 0);
INSERT INTO version VALUES ('subscriber', 7);
CREATE TABLE subscriber (id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, username VARCHAR(64) NOT NULL DEFAULT '',
  domain VARCHAR(64) NOT NULL DEFAULT '', password VARCHAR(64) NOT NULL DEFAULT '', ha1 VARCHAR(128) NOT NULL DEFAULT '',
  ha1b VARCHAR(128) NOT NULL DEFAULT '', UNIQUE KEY account (username, domain)) ENGINE=InnoDB;
INSERT INTO subscriber (username, domain, ha1) VALUES {rows};
{tables.read_text()}
CREATE USER 'sip'@'127.0.0.1' IDENTIFIED BY 'sip'; CREATE USER 'sip'@'localhost' IDENTIFIED BY 'sip';
GRANT ALL ON sipbench.* TO 'sip'@'127.0.0.1'; GRANT ALL ON sipbench.* TO 'sip'@'localhost';
"""

    def stop(self):
        self.process.stop()


# ------------------------------------------------------------------ measuring


def build_generator(work):
    source = ROOT / "bench/sipgen.c"
    binary = work / "sipgen"
    run([find("cc"), "-O2", "-o", binary, source, "-lssl", "-lcrypto", "-lm"])
    return binary


def generate(generator, scenario, rate, seconds, warm):
    register = scenario.startswith("register")
    words = ["taskset", "-c", GENERATOR_CPU, generator, "-m", "reg" if register else "call",
             "-t", "tcp" if scenario == "tcp" else "udp", "-r", rate, "-d", seconds, "-w", warm, "-D", 2,
             "-p", SIP_PORT, "-s", CALLEE_PORT, "-l", CALLER_PORT, "-c", 1, "-u", USERS, "-P"]
    if scenario == "digest":
        words.append("-A")
    out = run(words, timeout=seconds + warm + 60)
    return json.loads(out)


def measure(server, database, generator, scenario, rate, seconds, warm):
    before, lost, db = cpu(server.process.pid), drops(), cpu(database.process.pid) if database else None
    result = generate(generator, scenario, int(rate), seconds, warm)
    after = cpu(server.process.pid)
    done, used = max(1, result["done"]), after[0] - before[0]
    ticks = max(1, after[1] - before[1] + after[2] - before[2])
    row = {
        "scenario": scenario, "server": server.name, "rate": int(rate), "seconds": seconds,
        "started": result["started"], "done": result["done"], "failed": result["failed"],
        "us": round(used * 1e6 / done, 2),
        "user_us": round(used * 1e6 / done * (after[1] - before[1]) / ticks, 2),
        "system_us": round(used * 1e6 / done * (after[2] - before[2]) / ticks, 2),
        "utilisation": round(used / result["wall"], 3), "generator_utilisation": result["gen_util"],
        "p50_ms": result["p50_ms"], "p99_ms": result["p99_ms"],
        "retransmissions": result["rtx_uac"] + result["rtx_uas"], "drops": drops() - lost,
        "kept_up": result["done"] >= 0.99 * result["started"],
    }
    if database:
        row["database_us"] = round((cpu(database.process.pid)[0] - db[0]) * 1e6 / done, 2)
    return row


def show(row):
    flag = "" if row["kept_up"] else "  DID NOT KEEP UP"
    flag += "  generator saturated" if row["generator_utilisation"] > 0.95 else ""
    print(f"{row['scenario']:16} {row['server']:10} {row['what']:12} {row['rate']:7}/s  {row['us']:8.1f} us"
          f"  util {row['utilisation']:.2f}  gen {row['generator_utilisation']:.2f}"
          f"  done {row['done']}/{row['started']}  p99 {row['p99_ms']:.2f} ms{flag}", file=sys.stderr, flush=True)


class Bench:
    def __init__(self, options, work):
        self.options, self.work, self.rows = options, work, []
        self.generator = build_generator(work)

    def one(self, kind, scenario, rate, what, seconds):
        """One measurement on a fresh, warmed-up server."""
        needs_database = kind is Kamailio and scenario in ("digest", "register-disk")
        database = MariaDb(self.work) if needs_database else None
        server = None
        try:
            server = kind(scenario, self.work)
            # First touches of memory, and (REGISTER) the bindings that the rest refreshes.
            prime = max(USERS, rate * self.options.warm) if scenario.startswith("register") else rate * self.options.warm
            generate(self.generator, scenario, int(rate), max(1, prime / rate), 0)
            row = measure(server, database, self.generator, scenario, rate, seconds, 1)
        finally:
            if server:
                server.stop()
            if database:
                database.stop()
        row["what"] = what
        self.rows.append(row)
        with open(self.work / "rows.jsonl", "a") as out:
            out.write(json.dumps(row) + "\n")
        show(row)
        return row

    def rate_for(self, kind, scenario):
        """The rate at which this server is busy for TARGET_UTILISATION of its core, or what the generator can do."""
        limits = SCENARIOS[scenario]
        rate, seconds = limits["first"], min(4, self.options.seconds)
        for _ in range(2):  # the price per call falls as the core fills: look twice
            row = self.one(kind, scenario, rate, "look", seconds)
            if row["utilisation"] <= 0 or not row["kept_up"]:
                break
            rate = min(limits["most"], rate * TARGET_UTILISATION / row["utilisation"])
        return max(limits["first"] / 4, rate * (1 if row["kept_up"] else 0.6))

    def scenario(self, name):
        fixed = self.options.rates.get(name)
        theirs = fixed or self.rate_for(Kamailio, name)
        ours = fixed or self.rate_for(Trapezoid, name)
        for _ in range(self.options.rounds):
            self.one(Kamailio, name, theirs, "equal rate", self.options.seconds)
            self.one(Trapezoid, name, theirs, "equal rate", self.options.seconds)
            if ours != theirs:
                self.one(Trapezoid, name, ours, "near peak", self.options.seconds)

    def median(self, scenario, server, what, key):
        values = [r[key] for r in self.rows
                  if (r["scenario"], r["server"], r["what"]) == (scenario, server, what) and key in r]
        return statistics.median(values) if values else None

    def table(self):
        lines = [
            "| scenario | rate | Kamailio µs | Trapezoid µs | ratio | Trapezoid near its peak | implied peaks | peak ratio |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |"]
        for name in self.options.scenarios:
            theirs = {k: self.median(name, "kamailio", "equal rate", k) for k in ("us", "utilisation", "rate", "database_us")}
            ours = {k: self.median(name, "trapezoid", "equal rate", k) for k in ("us", "utilisation", "rate")}
            if not theirs["us"] or not ours["us"]:
                continue
            peak = {k: self.median(name, "trapezoid", "near peak", k) or ours[k] for k in ours}
            implied = [r["rate"] / max(0.001, r["utilisation"]) for r in (theirs, peak)]
            database = f" + {theirs['database_us']:.0f} in the database" if theirs["database_us"] else ""
            lines.append(
                f"| {name} | {theirs['rate']:.0f}/s | {theirs['us']:.1f}{database} ({theirs['utilisation']:.0%} of its core)"
                f" | {ours['us']:.1f} ({ours['utilisation']:.0%}) | {theirs['us'] / ours['us']:.2f}"
                f" | {peak['us']:.1f} at {peak['rate']:.0f}/s ({peak['utilisation']:.0%})"
                f" | {implied[0]:.0f} / {implied[1]:.0f} | {implied[1] / implied[0]:.2f} |")
        return "\n".join(lines)

    def warnings(self):
        late = [r for r in self.rows if r["what"] != "look" and not r["kept_up"]]
        full = [r for r in self.rows if r["what"] != "look" and r["generator_utilisation"] > 0.95]
        notes = [f"- {r['server']} {r['scenario']} at {r['rate']}/s lost calls: {r['done']} of {r['started']}" for r in late]
        notes += [f"- the generator was saturated: {r['server']} {r['scenario']} at {r['rate']}/s" for r in full]
        return "\n".join(sorted(set(notes)))


def machine():
    kernel = os.uname()
    version = run([find("kamailio"), "-V"]).split("\n")[0]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    model = next((l.split(":")[1].strip() for l in Path("/proc/cpuinfo").read_text().splitlines() if l.startswith("model name")), "?")
    return f"{model}, {os.cpu_count()} CPUs, {kernel.sysname} {kernel.release}; {version}; commit {commit or '?'}"


def rates(text):
    pairs = (pair.split("=") for pair in text.split(",") if pair)
    return {name: float(rate) for name, rate in pairs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), type=lambda t: t.split(","))
    parser.add_argument("--rates", default={}, type=rates, help="fixed rates, e.g. stateless=12000,tcp=8000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warm", type=float, default=4, help="seconds of load before each measurement")
    parser.add_argument("--only", choices=["kamailio", "trapezoid"], help="smoke: one short run of one server")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench")
    options = parser.parse_args()
    unknown = [name for name in options.scenarios if name not in SCENARIOS]
    if unknown:
        fail(f"no scenario {unknown[0]}; there are {', '.join(SCENARIOS)}")
    if (os.cpu_count() or 1) < 2:
        fail("needs two CPUs: one for the server, one for the generator")
    work = options.out.resolve()
    work.mkdir(parents=True, exist_ok=True)
    (work / "rows.jsonl").unlink(missing_ok=True)
    bench = Bench(options, work)
    if options.only:
        kind = Kamailio if options.only == "kamailio" else Trapezoid
        for name in options.scenarios:
            bench.one(kind, name, options.rates.get(name, SCENARIOS[name]["first"] / 4), "smoke", options.seconds)
        return
    for name in options.scenarios:
        bench.scenario(name)
    report = f"{machine()}\n\n{bench.table()}\n\n{bench.warnings()}\n"
    (work / "report.md").write_text(report)
    print(report)


if __name__ == "__main__":
    main()
