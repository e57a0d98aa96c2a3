"""Servers that listen for connections, and the crowd of clients that comes to them."""
import json
import os
import resource
import select
import signal
import subprocess
import time
from pathlib import Path

from .process import ROOT, Process, fail, find, fresh
from .servers import (ADMIN_PORT, CALLEE_PORT, DB_PORT, GENERATOR_CPU, SERVER_CPU, SIP_PORT, listens, server_binary,
                      write_tls)

STREAM_PORT = SIP_PORT + 1  # where the crowd goes; calls go to SIP_PORT
SPARE = 1_000  # descriptors left for everything that is no connection of the crowd


def descriptors():
    """How many descriptors a process may have; ours, and so our children's, are raised to that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1 << 20
    if hard == resource.RLIM_INFINITY or hard > most:
        hard = most
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Listening:
    """Ours: calls over TCP at SIP_PORT, and the crowd's transport at STREAM_PORT."""
    name = "trapezoid"

    def __init__(self, work, transport, key="p256", under=()):
        self.home, self.under, self.transport = fresh(work / "trapezoid"), list(under), transport
        self.config = self.home / "trapezoid.toml"
        self.config.write_text(self.configuration(work / "certificates", transport, key))
        self.start()

    def start(self):
        words = [*self.under, server_binary(), "serve", "--config", self.config]
        self.process = Process("trapezoid", words, self.home, SERVER_CPU)
        self.process.wait_for(lambda: listens("tcp") and listens("tcp", STREAM_PORT), 120 if self.under else 30)

    @staticmethod
    def configuration(certificates, transport, key):
        secret = f'tls = {{ certificate = "{certificates}/{key}.pem", key = "{certificates}/{key}.key" }}'
        return f"""
[server]
workers = 1
data_dir = "data"
drain_s = 1
[[listen]]
transport = "tcp"
address = "127.0.0.1:{SIP_PORT}"
[[listen]]
transport = "{transport}"
address = "127.0.0.1:{STREAM_PORT}"
{secret if transport in ("tls", "wss") else ""}
[tls]
ca = "{certificates}/ca.pem"
[location]
url = "memory:"
durability = "memory"
[[domain]]
name = "bench"
[domain.auth]
methods = []
[state]
mode = "transaction"
[[route]]
when = {{ method = ["INVITE"] }}
do = {{ relay = "sip:127.0.0.1:{CALLEE_PORT};transport=tcp" }}
# All of the crowd comes from 16 addresses, as if behind as many NATs.
[limits]
connections_per_address = 0
[admin]
listen = "127.0.0.1:{ADMIN_PORT}"
"""

    def restart(self):
        self.stop()
        self.start()

    def stop(self):
        self.process.stop()


class KamailioListening:
    """Kamailio with one listener, which answers OPTIONS and no more."""
    name = "kamailio"

    def __init__(self, work, transport, key="p256"):
        self.home = fresh(work / "kamailio")
        write_tls(self.home / "tls.cfg", work / "certificates", key)
        defines = ["ANSWER", f"OVER_{transport.upper()}", f"SIP_PORT={STREAM_PORT}",
                   f'CALLEE="sip:127.0.0.1:{CALLEE_PORT}"', f'DATABASE="mysql://none:none@127.0.0.1:{DB_PORT}/none"',
                   f'TLS_CONFIG="{self.home / "tls.cfg"}"']
        self.words = [find("kamailio"), "-DD", "-E", "-f", ROOT / "bench/kamailio/beside.cfg", "-Y", self.home,
                      "-P", self.home / "pid", "-m", "4096", "-M", "64", "-x", "fm", "-X", "fm"]
        for define in defines:
            self.words += ["-A", define]
        self.start()

    def start(self):
        self.process = Process("kamailio", self.words, self.home, SERVER_CPU)
        self.process.wait_for(lambda: listens("tcp", STREAM_PORT))

    def restart(self):
        self.stop()
        self.start()

    def stop(self):
        self.process.stop()


class Crowd:
    """The crowd as a child: it says when it is there, and goes on until its input ends."""

    def __init__(self, work, mode, transport=None, humble=False, cpus=GENERATOR_CPU, **options):
        self.mode, self.log = mode, work / f"crowd-{mode}.log"
        words = [find("taskset"), "-c", cpus]
        # Humble: only when nobody else wants the CPU, so that the load generator is not kept waiting.
        words += [find("chrt"), "--idle", "0"] if humble else []
        words += [str(server_binary()), "lab-crowd", mode]
        if transport:
            words += ["--transport", transport, "--target", f"127.0.0.1:{STREAM_PORT}", "--name", "bench"]
        for name, value in options.items():
            words += [f"--{name}".replace("_", "-")] + ([] if value is True else [str(value)])
        with open(self.log, "w") as out:
            self.child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out,
                                          start_new_session=True)
        self.lines, self.rest = [], b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def read(self, seconds, enough):
        """Reads lines until `enough(line)`, which is returned; nothing at the end of the output."""
        deadline = time.monotonic() + seconds
        while True:
            while b"\n" in self.rest:
                line, self.rest = self.rest.split(b"\n", 1)
                self.lines.append(line.decode())
                if enough(self.lines[-1]):
                    return self.lines[-1]
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.child.stdout], [], [], left)[0]:
                self.give_up(f"said nothing for {seconds:.0f} s")
            more = os.read(self.child.stdout.fileno(), 65536)
            if not more:
                return None
            self.rest += more

    def give_up(self, why):
        said = self.log.read_text(errors="replace")[-2000:]
        self.stop()
        fail(f"crowd {self.mode} {why}:\n{said}")

    def ready(self, seconds=300):
        """How many are there, once it says so."""
        line = self.read(seconds, lambda line: line.startswith("ready "))
        return int(line.split()[1]) if line else self.give_up("ended early")

    def go(self):
        self.child.stdin.write(b"go\n")
        self.child.stdin.flush()

    def results(self, seconds=300):
        """Ends its input, and waits for its end: the rows that it printed."""
        if self.child.stdin and not self.child.stdin.closed:
            self.child.stdin.close()
        self.read(seconds, lambda line: False)
        if self.child.wait(10) != 0:
            self.give_up("failed")
        rows = [json.loads(line) for line in self.lines if line.startswith("{")]
        return rows or self.give_up("said nothing of what it did")

    def stop(self):
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)  # its own session: only what we started
        self.child.wait()
        for stream in (self.child.stdin, self.child.stdout):
            stream.close()


def kernel():
    """Bytes of the kernel that have to do with sockets, of the whole machine: slabs, and what lies in
    buffers of TCP."""
    slab = next(int(line.split()[1]) * 1024 for line in Path("/proc/meminfo").read_text().splitlines()
                if line.startswith("Slab:"))
    for line in Path("/proc/net/sockstat").read_text().splitlines():
        if line.startswith("TCP:"):
            words = line.split()
            return slab, int(words[words.index("mem") + 1]) * resource.getpagesize()
    return fail("/proc/net/sockstat says nothing of TCP")
