#!/usr/bin/env python3
"""Resident memory of the server: transactions alive and finished, and registered contacts.

  calls     stateful calls at a rate for a while, then quiet: bytes for each finished transaction,
            and whether all of them are gone after the quiet
  live      calls that ring: bytes for each transaction that waits, and whether they end
  contacts  registrations in memory: bytes for each contact

See bench/README.md for what the figures mean and what this needs.
"""
import argparse
import json
import select
import socket
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
from kit import load, report  # noqa: E402 (after the line above, which keeps the tree clean)
from kit.process import ROOT, fail, memory  # noqa: E402
from kit.servers import CALLEE_PORT, CALLER_PORT, SIP_PORT, Kamailio, Trapezoid, machine, metrics, total  # noqa: E402

PARTS = ("calls", "live", "contacts")
MEBIBYTE = 1 << 20
GAUGES = ("server_transactions", "client_transactions", "timers", "parked_requests")
GOALS = {"calls": "≤ 512 MiB at 12,000 calls/s", "contacts": "≤ 500 bytes"}


def transactions(server):
    """(server transactions, client transactions) that ours holds; Kamailio is not asked."""
    if server.name != "trapezoid":
        return None
    readings = metrics()
    return total(readings, "server_transactions"), total(readings, "client_transactions")


def left(server):
    """What ours still holds, in words; nothing is what should be."""
    if server.name != "trapezoid":
        return "not asked"
    readings = metrics()
    found = [f"{total(readings, name):.0f} {name}" for name in GAUGES if total(readings, name)]
    return ", ".join(found) or "nothing"


def result(server, part, before, most, after, **more):
    row = {"server": server.name, "part": part, "before_mib": round(before / MEBIBYTE, 1),
           "most_mib": round(most / MEBIBYTE, 1), "after_mib": round(after / MEBIBYTE, 1), **more}
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


# ------------------------------------------------------------------ calls that come and go


def calls(kind, options, generator, work):
    server = kind("transaction", work)
    try:
        load.generate(generator, "transaction", 100, 1, 0)
        before = most = memory(server.process.pid)
        held = transactions(server)
        running = load.start_generator(generator, work, "transaction", options.rate, options.seconds)
        while running.child.poll() is None:
            time.sleep(1)
            now = memory(server.process.pid)
            if now >= most and running.child.poll() is None:
                most, held = now, transactions(server)
        said = json.loads(running.log.read_text().strip().splitlines()[-1])
        time.sleep(options.quiet)
        after = memory(server.process.pid)
        more = {"done": said["done"], "started": said["started"], "left": left(server)}
        if held:
            more.update(server_transactions=held[0], client_transactions=held[1],
                        bytes_each=round((most - before) / max(1, sum(held))))
        return result(server, "calls", before, most, after, **more)
    finally:
        server.stop()


# ------------------------------------------------------------------ calls that ring


def invite(number):
    return (
        f"INVITE sip:user{number:05d}@bench SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:{CALLER_PORT};branch=z9hG4bKm{number}\r\n"
        f"Max-Forwards: 70\r\nFrom: <sip:a@bench>;tag=f{number}\r\nTo: <sip:user{number:05d}@bench>\r\n"
        f"Call-ID: memory{number}@gen\r\nCSeq: 1 INVITE\r\nContact: <sip:a@127.0.0.1:{CALLER_PORT}>\r\n"
        "Content-Length: 0\r\n\r\n").encode()


def fields(message, *names):
    """Lines of a message's head that begin with one of the names."""
    head = message.split(b"\r\n\r\n", 1)[0].split(b"\r\n")[1:]
    return [line for line in head if line.split(b":", 1)[0] in names]


def answer(request, status):
    lines = fields(request, b"Via", b"Record-Route", b"From", b"To", b"Call-ID", b"CSeq")
    lines = [line + b";tag=t1" if line.startswith(b"To:") and b";tag=" not in line else line for line in lines]
    return b"\r\n".join([b"SIP/2.0 " + status, *lines, b"Content-Length: 0\r\n\r\n"])


def ack(response, number):
    lines = [b"ACK sip:user%05d@bench SIP/2.0" % number, b"Max-Forwards: 70", b"CSeq: 1 ACK", b"Content-Length: 0"]
    lines[1:1] = fields(response, b"Via", b"From", b"To", b"Call-ID")
    return b"\r\n".join(lines) + b"\r\n\r\n"


class Phones:
    """A caller and a callee that keep calls ringing."""

    def __init__(self):
        self.caller, self.callee = (self.bound(port) for port in (CALLER_PORT, CALLEE_PORT))
        self.ringing, self.refused = {}, 0

    @staticmethod
    def bound(port):
        phone = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        phone.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * MEBIBYTE)
        phone.bind(("127.0.0.1", port))
        return phone

    def turn(self, wait=0.0):
        """Takes what arrived: INVITEs ring, refusals are acknowledged."""
        while ready := select.select([self.caller, self.callee], [], [], wait)[0]:
            for phone in ready:
                message, server = phone.recvfrom(4096)
                if phone is self.callee and message.startswith(b"INVITE"):
                    self.ringing[fields(message, b"Call-ID")[0]] = message
                    phone.sendto(answer(message, b"180 Ringing"), server)
                elif phone is self.caller and message.startswith(b"SIP/2.0 486"):
                    number = int(fields(message, b"Call-ID")[0].split(b"memory")[1].split(b"@")[0])
                    phone.sendto(ack(message, number), server)
                    self.refused += 1

    def close(self):
        self.caller.close()
        self.callee.close()


def live(kind, options, _generator, work):
    server, phones = kind("transaction", work), Phones()
    try:
        proxy = ("127.0.0.1", SIP_PORT)
        before = memory(server.process.pid)
        for number in range(options.live):
            phones.caller.sendto(invite(number), proxy)
            if number % 20 == 19:
                phones.turn()
                time.sleep(0.005)  # about 3,000/s: nothing overflows
        phones.turn(1)
        most, held = memory(server.process.pid), transactions(server)
        ringing = list(phones.ringing.values())
        for number, request in enumerate(ringing):
            phones.callee.sendto(answer(request, b"486 Busy Here"), proxy)
            if number % 20 == 19:
                phones.turn()
                time.sleep(0.005)
        phones.turn(1)
        time.sleep(options.quiet)
        after = memory(server.process.pid)
        more = {"done": phones.refused, "started": options.live, "left": left(server)}
        if held:
            more.update(server_transactions=held[0], client_transactions=held[1],
                        bytes_each=round((most - before) / max(1, sum(held))))
        return result(server, "live", before, most, after, **more)
    finally:
        phones.close()
        server.stop()


# ------------------------------------------------------------------ registrations


def contacts(kind, options, generator, work):
    # Stateless where that is ours to say, so that no transaction is in the figure.
    server = kind("register-memory", work, **({"state": "stateless"} if kind is Trapezoid else {}))
    few, rate = 100, 5000
    try:
        load.generate(generator, "register-memory", few, 1, 0, users=few)
        before = memory(server.process.pid)
        # One round over all users, and a little more, because arrivals are random.
        said = load.generate(generator, "register-memory", rate, 1.05 * options.contacts / rate + 0.5, 0,
                             users=options.contacts)
        most = memory(server.process.pid)
        time.sleep(min(options.quiet, 5))
        after = memory(server.process.pid)
        return result(server, "contacts", before, most, after, done=said["done"], started=said["started"],
                      bytes_each=round((after - before) / (options.contacts - few)), left=left(server))
    finally:
        server.stop()


# ------------------------------------------------------------------ report


def table(rows):
    lines = [["what", "server", "before MiB", "most MiB", "after quiet MiB", "transactions (server + client)",
              "bytes each", "left after quiet", "goal"]]
    for row in rows:
        held = (f"{row['server_transactions']:,.0f} + {row['client_transactions']:,.0f}"
                if "server_transactions" in row else "–")
        lines.append([row["part"], row["server"], *(f"{row[key]:.1f}" for key in ("before_mib", "most_mib", "after_mib")),
                      held, f"{row['bytes_each']:,}" if "bytes_each" in row else "–", row["left"],
                      GOALS.get(row["part"], "–")])
    return lines


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), type=lambda t: t.split(","))
    parser.add_argument("--rate", type=float, default=12_000, help="calls/s of the part calls")
    parser.add_argument("--seconds", type=float, default=40, help="of load in the part calls")
    parser.add_argument("--quiet", type=float, default=37, help="seconds without load: timers take 32")
    parser.add_argument("--live", type=int, default=20_000, help="calls that ring at once")
    parser.add_argument("--contacts", type=int, default=100_000)
    parser.add_argument("--kamailio", action="store_true", help="Kamailio too (its own sums only)")
    parser.add_argument("--markdown", action="store_true", help="print a table for docs/performance.md")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench")
    options = parser.parse_args()
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        fail(f"no part {unknown[0]}; there are {', '.join(PARTS)}")
    return options


def main():
    options = arguments()
    work = load.workspace(options.out)
    generator = load.build_generator(work)
    rows = []
    for part in options.parts:
        for kind in (Trapezoid, Kamailio) if options.kamailio else (Trapezoid,):
            rows.append({"calls": calls, "live": live, "contacts": contacts}[part](kind, options, generator, work))
    (work / "memory.json").write_text(json.dumps(rows, indent=1))
    print(f"{machine()}\n\n{report.render(table(rows), options.markdown)}")
    for row in rows:
        if row["done"] < 0.99 * row["started"]:
            print(f"- not to be believed: {row['server']} {row['part']} completed {row['done']} of {row['started']}")


if __name__ == "__main__":
    main()
