"""Tables, goals and notes of connections.py."""
import statistics

from .report import render

# Bytes for each idle connection in the process (1 kB = 1,000 bytes).
MEMORY_GOALS = {"tcp": 4_000, "tls": 20_000, "tls1.2": 20_000, "wss": 24_000}
# Work for a message with many connections, beside few; p99 under attack, beside none; of a
# handshake's time over sockets, beside memory.
SAME, TWICE = 1.05, 2.0
# What all connections together may hold (transport.connection_bytes), and each besides.
BOUND_MIB, EACH_BYTES = 256, 24_000


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def of(rows, **wanted):
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def met(good):
    return "yes" if good else "no"


def memory(rows):
    table = [["idle connections", "server", "there", "bytes each", "goal", "met", "kernel, both ends: slabs, buffers",
              "MiB before, at most, after", "opened in"]]
    for row in rows:
        goal = MEMORY_GOALS.get(row["kind"])
        ours = goal and row["server"] == "trapezoid"
        table.append([
            row["kind"], row["server"], f"{row['there']:,}", f"{row['bytes_each']:,}", f"≤ {goal:,}" if ours else "–",
            met(row["bytes_each"] <= goal) if ours else "–", f"{row['slab_each']:,}, {row['buffers_each']:,}",
            f"{row['before_mib']}, {row['most_mib']}, {row['after_mib']}", f"{row['opened_in_s']:.1f} s"])
    return table


def memory_notes(rows):
    for row in rows:
        place = f"memory, {row['server']} {row['kind']}"
        if row["there"] < row["asked"]:
            yield f"{place}: {row['there']:,} of {row['asked']:,} could be opened"
        if row["closed"]:
            yield f"not to be believed: {place}: the server ended {row['closed']:,} connections meanwhile"
        if row["known"] is not None and row["known"] < row["there"]:
            yield f"not to be believed: {place}: the server knows of {row['known']:,} connections"
        if row["bytes_each"] <= 0:
            yield f"not to be believed: {place}: memory did not grow; more connections would show"
        if row["left"]:
            yield f"{place}: {row['left']:,} connections are left after all have ended"


def messages(rows):
    table = [["idle connections", "for each message", "runs", "beside the fewest", "goal", "met"]]
    for unit in dict.fromkeys(row["unit"] for row in rows):
        counts = sorted({row["idle"] for row in of(rows, unit=unit)})
        base = median(of(rows, unit=unit, idle=counts[0]), "each")
        for count in counts:
            some = of(rows, unit=unit, idle=count)
            ratio, many = median(some, "each") / base, count != counts[0]
            table.append([f"{count:,}", f"{median(some, 'each'):,.{0 if unit == 'instructions' else 2}f} {unit}",
                          str(len(some)), f"{ratio:.3f}", f"≤ {SAME}" if many else "–",
                          met(ratio <= SAME) if many else "–"])
    return table


def messages_notes(rows):
    for row in rows:
        if row["there"] < row["idle"] or row["closed"]:
            yield (f"not to be believed: messages: of {row['idle']:,} idle connections {row['there']:,} were opened, "
                   f"and {row['closed']:,} ended early")
        if not row["kept_up"]:
            yield f"not to be believed: messages, {row['idle']:,} idle: {row['done']} of {row['started']} calls completed"
        if 0 < row.get("utilisation", 0) < 0.6:
            yield f"messages, {row['idle']:,} idle: only {row['utilisation']:.0%} of the core was used"


def attackers(rows):
    quiet, loud = of(rows, attacked=False), of(rows, attacked=True)
    ratio = median(loud, "p99_ms") / max(median(quiet, "p99_ms"), 0.001)
    growth = max(row["growth_mib"] for row in loud)
    clients = max(row["loris_there"] + row["deaf_there"] for row in loud)
    bound = BOUND_MIB + clients * EACH_BYTES / (1 << 20)
    spread = ", ".join(f"{a['p99_ms']:.2f}/{b['p99_ms']:.2f}" for a, b in zip(quiet, loud))
    return [["attackers", "measured", "goal", "met"],
            ["p99 of others' calls, median", f"{median(quiet, 'p99_ms'):.2f} ms without, {median(loud, 'p99_ms'):.2f} with: "
             f"{ratio:.2f} × ({spread})", f"≤ {TWICE} ×", met(ratio <= TWICE)],
            ["memory, growth at most", f"{growth:.0f} MiB", f"≤ {bound:.0f} MiB", met(growth <= bound)],
            ["kernel's buffers, growth at most", f"{max(row['kernel_mib'] for row in loud):.0f} MiB", "–", "–"],
            ["slow there, cut, refused", medians(loud, "loris"), "–", "–"],
            ["deaf there, cut, refused", medians(loud, "deaf"), "–", "–"]]


def medians(rows, who):
    return ", ".join(f"{median(rows, f'{who}_{what}'):,.0f}" for what in ("there", "cut", "refused"))


def attackers_notes(rows):
    for row in rows:
        place = f"attackers, round {row['round']}, {'with' if row['attacked'] else 'without'} them"
        if row["done"] < 0.999 * row["started"]:
            yield f"{place}: only {row['done']:,} of {row['started']:,} calls were completed"
        if row["attacked"] and not row["loris_there"] + row["deaf_there"]:
            yield f"not to be believed: {place}: none was there"
        if row["attacked"] and not row["deaf_cut"]:
            yield f"{place}: no deaf client was cut, so that none had made the server wait; --siege longer"


def handshakes(rows):
    table = [["handshake", "server", "µs of its CPU", "of which system", "per second and core", "beside memory",
              "without what TCP costs", "beside memory", "µs in memory: ours, the library's buffered"]]
    for key, version, resumed in dict.fromkeys((row["key"], row["version"], row["resumed"]) for row in rows):
        mine = of(rows, key=key, version=version, resumed=resumed)
        alone = [of(mine, server=f"memory, {interface}") for interface in ("ours", "buffered")]
        alone = [median(some, "us") if some else 0 for some in alone]
        for server in ("trapezoid", "kamailio"):
            some, tcp = of(mine, server=server), of(rows, server=server, version="none")
            if not some:
                continue
            us, system = median(some, "us"), median(some, "system_us")
            net = us - median(tcp, "us") if tcp and version != "none" else None
            ratios = [f"{part / alone[0]:.2f} ×" if part is not None and alone[0] else "–" for part in (us, net)]
            name = "TCP alone" if version == "none" else f"{version} {key} {'resumed' if resumed else 'full'}"
            table.append([name, server, f"{us:.1f}", f"{system:.1f}", f"{1e6 / max(us, 0.01):,.0f}", ratios[0],
                          "–" if net is None else f"{net:.1f}", ratios[1],
                          f"{alone[0]:.1f}, {alone[1]:.1f}" if alone[0] else "–"])
    return table


def handshakes_notes(rows):
    for row in rows:
        place = f"handshakes, {row['server']} {row['version']} {row['key']} {'resumed' if row['resumed'] else 'full'}"
        if not row["done"] or row.get("failed"):
            yield f"not to be believed: {place}: {row['done']:,} done, {row['failed']:,} failed"
        if "were_resumed" in row and row["resumed"] != (row["were_resumed"] > 0.95 * row["done"]):
            yield f"not to be believed: {place}: {row['were_resumed']:,} of {row['done']:,} were resumed"


def storm(rows):
    table = [["storm", "clients", "served", "resumed", "all served after", "median, p99", "tries in all, most",
              "CPU of the server", "p99 of calls beside, in the whole run"]]
    for server in dict.fromkeys(row["server"] for row in rows):
        some = of(rows, server=server)
        table.append([
            f"{server}, {some[0]['against']}", f"{some[0]['asked']:,}", f"{min(row['served'] for row in some):,}",
            f"{min(row['resumed'] for row in some):,}", f"{median(some, 'all_s'):.2f} s",
            f"{median(some, 'median_s'):.2f}, {median(some, 'p99_s'):.2f} s",
            f"{median(some, 'tries'):,.0f}, {max(row['most_tries'] for row in some)}", f"{median(some, 'cpu_s'):.2f} s",
            f"{median(some, 'calls_p99_ms'):.2f} ms" if some[0].get("calls_rate") else "–"])
    return table


def storm_notes(rows):
    for row in rows:
        place = f"storm, {row['server']}, round {row['round']}"
        if row["remembered"] < row["asked"] and row["against"] in ("tls", "wss"):
            yield f"not to be believed: {place}: only {row['remembered']:,} of {row['asked']:,} had a ticket"
        if row["served"] < row["asked"]:
            yield f"{place}: goal missed: {row['served']:,} of {row['asked']:,} were served before all was given up"
        if row.get("calls_done", 0) < 0.999 * row.get("calls_started", 0):
            yield f"{place}: goal missed: beside it {row['calls_done']:,} of {row['calls_started']:,} calls were completed"
        if row["server"] == "trapezoid" and row["against"] in ("tls", "wss") and row["resumed"] < 0.99 * row["asked"]:
            yield f"{place}: goal missed: {row['resumed']:,} of {row['asked']:,} resumed their session"


PARTS = {"memory": (memory, memory_notes), "messages": (messages, messages_notes),
         "attackers": (attackers, attackers_notes), "handshakes": (handshakes, handshakes_notes),
         "storm": (storm, storm_notes)}


def text(rows, where, markdown):
    """The report: a table for each part, then what a reader must know before believing it."""
    pieces, notes = [where], []
    for name, (table, notes_of) in PARTS.items():
        some = of(rows, part=name)
        if some:
            made = table(some)
            pieces.append(render(made, markdown))
            head = made[0]
            if "met" in head:
                at = head.index("met")
                notes += [f"goal missed: {name}: {', '.join(line[:at])}" for line in made[1:] if line[at] == "no"]
            notes += notes_of(some)
    pieces.append("\n".join(f"- {note}" for note in dict.fromkeys(notes)))
    return "\n\n".join(pieces).rstrip() + "\n"
