"""The servers that are measured, each started for one scenario: ours, Kamailio, the bare relay."""
import os
import re
import socket
import sqlite3
import subprocess
import time
import urllib.request
from hashlib import md5
from pathlib import Path

from .process import ROOT, Process, fail, find, fresh, run

SIP_PORT, CALLEE_PORT, CALLER_PORT, DB_PORT, ADMIN_PORT = 15060, 15070, 15090, 13306, 18080
USERS = 10_000
SERVER_CPU, GENERATOR_CPU = "0", "1"

# kamailio: what -A defines. first: calls/s of the first look. most: what the generator can offer.
SCENARIOS = {
    "stateless": dict(kamailio=["STATELESS"], first=4000, most=36_000, relay="udp"),
    "transaction": dict(kamailio=["TRANSACTION"], first=3000, most=30_000, relay="udp"),
    "digest": dict(kamailio=["TRANSACTION", "DIGEST"], first=800, most=20_000, relay="udp"),
    "tcp": dict(kamailio=["TRANSACTION", "OVER_TCP"], first=3000, most=25_000, relay="tcp"),
    "tls": dict(kamailio=["TRANSACTION", "OVER_TLS"], first=3000, most=20_000, relay="tcp"),
    "register-memory": dict(kamailio=["REGISTRAR"], first=10_000, most=110_000, relay="register"),
    "register-disk": dict(kamailio=["REGISTRAR", "ON_DISK"], first=500, most=60_000, relay="register"),
}


def is_register(scenario):
    return scenario.startswith("register")


def transport(scenario):
    return scenario if scenario in ("tcp", "tls") else "udp"


def listens(kind, port=SIP_PORT):
    """Whether something waits at the port (not what is left of an old connection)."""
    table, state = ("udp", "07") if kind == "udp" else ("tcp", "0A")
    rows = [row.split() for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == state for row in rows)


def answers(kind):
    """Whether the SIP port takes connections (udp: answers a message)."""
    if kind != "udp":
        return listens(kind)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(0.3)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        text = (
            f"OPTIONS sip:127.0.0.1:{SIP_PORT} SIP/2.0\r\n"
            f"Via: SIP/2.0/UDP 127.0.0.1:{port};branch=z9hG4bKprobe{port}\r\n"
            f"Max-Forwards: 0\r\nFrom: <sip:probe@bench>;tag=1\r\nTo: <sip:127.0.0.1:{SIP_PORT}>\r\n"
            f"Call-ID: probe{port}\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n")
        try:
            probe.sendto(text.encode(), ("127.0.0.1", SIP_PORT))
            return bool(probe.recv(2048))
        except OSError:
            return False


def server_binary():
    """Ours."""
    binary = Path(os.environ.get("TRAPEZOID_BIN") or ROOT / "target/release/trapezoid")
    if not binary.exists():
        fail(f"{binary} is missing: run `make bench`, or cargo build --release, or set TRAPEZOID_BIN")
    return binary


class Trapezoid:
    name = "trapezoid"

    def __init__(self, scenario, work, workers=1, cpus=SERVER_CPU, state=None):
        binary = server_binary()
        home = fresh(work / "trapezoid")
        config = home / "trapezoid.toml"
        state = state or ("stateless" if scenario == "stateless" else "transaction")
        config.write_text(self.configuration(scenario, workers, state, work / "certificates"))
        if scenario == "digest":
            run([binary, "user", "add", "first@bench", "--password-stdin", "--config", config],
                input="first\n", cwd=home)
            self.fill(home / "subscribers.db")
        self.process = Process("trapezoid", [binary, "serve", "--config", config], home, cpus)
        self.process.wait_for(lambda: answers(transport(scenario)))

    @staticmethod
    def configuration(scenario, workers, state, certificates):
        durability, location = ("commit", "sqlite:location.db")
        if scenario == "register-memory":
            durability, location = ("memory", "memory:")
        methods = '"INVITE"' if scenario == "digest" else ""
        suffix = "" if transport(scenario) == "udp" else f";transport={scenario}"
        secret = f'tls = {{ certificate = "{certificates}/p256.pem", key = "{certificates}/p256.key" }}'
        authority = f'[tls]\nca = "{certificates}/ca.pem"'
        return f"""
[server]
workers = {workers}
data_dir = "data"
drain_s = 1
[[listen]]
transport = "{transport(scenario)}"
address = "127.0.0.1:{SIP_PORT}"
{secret if scenario == "tls" else ""}
{authority if scenario == "tls" else ""}
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


def metrics():
    """What /metrics of our server says: {(name, worker or None): sum over the other labels}."""
    with urllib.request.urlopen(f"http://127.0.0.1:{ADMIN_PORT}/metrics", timeout=10) as page:
        text = page.read().decode()
    found = {}
    for line in text.splitlines():
        match = re.match(r"(?:trapezoid_)?(\w+?)(?:_total)?(?:\{(.*)\})? (\S+)", line)
        if match and not line.startswith("#"):
            name, labels, value = match.groups()
            worker = re.search(r'worker="(\d+)"', labels or "")
            key = (name, int(worker.group(1)) if worker else None)
            found[key] = found.get(key, 0) + float(value)
    return found


def total(readings, name):
    """A metric, summed over the workers."""
    values = [value for (known, _), value in readings.items() if known == name]
    return sum(values) if values else fail(f"/metrics has no {name}")


class Kamailio:
    name = "kamailio"

    def __init__(self, scenario, work):
        home = fresh(work / "kamailio")
        suffix = "" if transport(scenario) == "udp" else f";transport={scenario}"
        defines = SCENARIOS[scenario]["kamailio"] + [
            f"SIP_PORT={SIP_PORT}",
            f'CALLEE="sip:127.0.0.1:{CALLEE_PORT}{suffix}"',
            f'DATABASE="mysql://sip:sip@127.0.0.1:{DB_PORT}/sipbench"',
            f'TLS_CONFIG="{home / "tls.cfg"}"']
        write_tls(home / "tls.cfg", work / "certificates", "p256")
        # Its default allocator (qm) is three times slower: fm for shared and private memory.
        words = [find("kamailio"), "-DD", "-E", "-f", ROOT / "bench/kamailio/beside.cfg", "-Y", home,
                 "-P", home / "pid", "-m", "4096", "-M", "32", "-x", "fm", "-X", "fm"]
        for define in defines:
            words += ["-A", define]
        self.process = Process("kamailio", words, home, SERVER_CPU)
        self.process.wait_for(lambda: answers(transport(scenario)))

    def stop(self):
        self.process.stop()


def write_tls(path, certificates, key):
    """What Kamailio's tls module is told: TLS 1.2 and 1.3, nobody's certificate is verified."""
    path.write_text(f"""[server:default]
method = TLSv1.2+
verify_certificate = no
require_certificate = no
certificate = {certificates}/{key}.pem
private_key = {certificates}/{key}.key
[client:default]
method = TLSv1.2+
verify_certificate = no
require_certificate = no
""")


class Relay:
    """The floor: the same datagrams or bytes through the same CPU, and no SIP."""
    name = "relay"

    def __init__(self, scenario, work):
        binary = work / "relay"
        if not binary.exists():
            run([find("cc"), "-O2", "-o", binary, ROOT / "crates/lab/src/servers/relay.c"])
        words = [binary, SCENARIOS[scenario]["relay"], SIP_PORT, CALLER_PORT, CALLEE_PORT]
        self.process = Process("relay", words, work, SERVER_CPU)
        self.process.wait_for(lambda: listens(transport(scenario)))

    def stop(self):
        self.process.stop()


def ha1(number):
    return md5(f"user{number:05d}:bench:pass{number:05d}".encode()).hexdigest()


class MariaDb:
    """A private server on a data directory and port of its own."""

    def __init__(self, work):
        home = fresh(work / "mariadb")
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
        run([find("mariadb"), "--no-defaults", f"--socket={self.socket}", "-uroot"], input=self.schema())

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


def machine():
    """Where and with what the figures were made."""
    kernel = os.uname()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    date = time.strftime("%Y-%m-%d")
    return f"{date}, {source()}; {model}, {os.cpu_count()} CPUs, {kernel.sysname} {kernel.release}"


def source():
    """What the server was made from, as far as can be told: a binary may be of any commit."""
    def git(*args):
        return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    text = f"commit {git('rev-parse', '--short', 'HEAD') or '?'}"
    if git("status", "--porcelain"):
        text += " and changes"
    made = server_binary().stat().st_mtime
    newest = git("log", "-1", "--format=%ct", "--", "crates", "Cargo.toml", "Cargo.lock")
    if made < float(newest or 0):
        text += f", but a server of {time.strftime('%Y-%m-%d %H:%M', time.localtime(made))}, before its newest change"
    return text


def kamailio_version():
    return run([find("kamailio"), "-V"]).split("\n")[0].removeprefix("version: ")
