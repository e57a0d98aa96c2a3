"""Tables of what was measured, as aligned text or Markdown."""
import statistics

# The goals, and what Kamailio takes for the same on the host where they were set (µs a call): on a
# slower host each goal is scaled by how much slower Kamailio is there in the same run.
GOALS = {
    "stateless": dict(us=26, user_us=6, ratio=1.7, kamailio=46),
    "transaction": dict(us=34, user_us=13, ratio=2.2, kamailio=75),
    "digest": dict(us=60, kamailio=180),
    "tcp": dict(us=45, share=0.5, kamailio=91),
    "tls": dict(us=60, share=0.55, kamailio=110),
    "register-memory": dict(us=6, kamailio=8),
    "register-disk": dict(peak=30_000),
}
FULL = 0.70  # of a core: from here on a rate counts as near the peak


def render(table, markdown):
    """A table given as rows of texts, the first of them the head."""
    if markdown:
        rows = ["| " + " | ".join(row) + " |" for row in table]
        return "\n".join([rows[0], "|" + " --- |" * len(table[0]), *rows[1:]])
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in table)


class Figures:
    """Medians of the rows of a run."""

    def __init__(self, rows):
        self.rows = [row for row in rows if row["what"] != "look"]
        self.scenarios = list(dict.fromkeys(row["scenario"] for row in self.rows))

    def median(self, scenario, server, what):
        """One row made of the medians of the repeated ones, or nothing."""
        rows = [row for row in self.rows if (row["scenario"], row["server"], row["what"]) == (scenario, server, what)]
        if not rows:
            return None
        keys = [key for key, value in rows[0].items() if isinstance(value, (int, float)) and key != "kept_up"]
        found = {key: statistics.median(row[key] for row in rows) for key in keys}
        found["kept_up"] = all(row["kept_up"] for row in rows)
        found["peak"] = 1e6 / max(found["us"], 0.01)  # what rate / utilisation is, lost calls left out
        return found

    def scenario(self, name):
        """(Kamailio near its peak, ours near ours, ours at Kamailio's rate, floor at ours)."""
        theirs = self.median(name, "kamailio", "near peak")
        same = self.median(name, "trapezoid", "equal rate")
        ours = self.median(name, "trapezoid", "near peak") or same
        return theirs, ours, same or ours, self.median(name, "relay", "floor")

    def table(self):
        """The comparison, a scenario each row."""
        table = [["scenario", "Kamailio µs (user + system)", "Trapezoid µs (user + system)", "floor µs",
                  "implied peaks, /s", "peak ratio", "µs at one rate", "ratio", "goal"]]
        for name in self.scenarios:
            theirs, ours, same, floor = self.scenario(name)
            if not theirs or not ours:
                continue
            table.append([
                name, cell(theirs), cell(ours), f"{floor['us']:.1f}" if floor else "–",
                f"{theirs['peak']:,.0f} / {ours['peak']:,.0f}", f"{ours['peak'] / theirs['peak']:.2f}",
                f"{theirs['us']:.1f} / {same['us']:.1f}", f"{theirs['us'] / same['us']:.2f}", goal(name)])
        return table

    def goals(self):
        """Each goal: as measured, and scaled to the host where it was set."""
        table = [["scenario", "goal", "measured", "at that host's speed", "met"]]
        for name in self.scenarios:
            theirs, ours, _, _ = self.scenario(name)
            wanted = GOALS[name]
            if not theirs or not ours:
                continue
            scale = wanted.get("kamailio", theirs["us"]) / theirs["us"]
            for key, text in (("us", "µs"), ("user_us", "user µs")):
                if key in wanted:
                    met = verdict(ours[key] <= wanted[key], ours[key] * scale <= wanted[key])
                    table.append([name, f"{text} ≤ {wanted[key]}", f"{ours[key]:.1f}", f"{ours[key] * scale:.1f}", met])
            if "share" in wanted:
                share = ours["us"] / theirs["us"]
                met = verdict(share <= wanted["share"], False)
                table.append([name, f"µs ≤ {wanted['share']} × Kamailio's", f"{share:.2f}", "–", met])
            if "ratio" in wanted:
                ratio = ours["peak"] / theirs["peak"]
                met = verdict(ratio >= wanted["ratio"], False)
                table.append([name, f"peak ≥ {wanted['ratio']} × Kamailio's", f"{ratio:.2f}", "–", met])
            if "peak" in wanted:
                met = verdict(ours["peak"] >= wanted["peak"] and ours["kept_up"], False)
                table.append([name, f"≥ {wanted['peak']:,}/s", f"{ours['peak']:,.0f}/s implied", "–", met])
        return table

    def notes(self):
        """What a reader must know before believing the figures."""
        notes = []
        for row in self.rows:
            place = f"{row['server']} {row['scenario']} at {row['rate']}/s ({row['what']})"
            if not row["kept_up"]:
                notes.append(f"{place} lost calls: {row['done']} of {row['started']} were completed")
            if generator_full(row):
                notes.append(f"{place}: the generator gave out, at {row['offered']}/s")
            elif row["what"] == "near peak" and row["utilisation"] < FULL:
                notes.append(f"{place}: only {row['utilisation']:.0%} of the core was used")
            if row["drops"]:
                notes.append(f"{place}: {row['drops']} datagrams overflowed the receive buffer")
        probes = [row["probe_ms"] for row in self.rows]
        if probes and max(probes) > 1.15 * min(probes):
            notes.append(f"the host's speed varied by {max(probes) / min(probes) - 1:.0%} between the runs: run again")
        counts = {note: notes.count(note) for note in notes}
        return [f"- {note}" for note in sorted(counts)]


def cell(row):
    """Price, its two parts, rate and utilisation."""
    database = f" + {row['database_us']:.0f} in its database" if "database_us" in row else ""
    full = "" if row["utilisation"] >= FULL else ", implied peak" if row["kept_up"] else ", calls lost"
    return (f"{row['us']:.1f} ({row['user_us']:.1f} + {row['system_us']:.1f}){database}"
            f" at {row['offered']:,.0f}/s, {row['utilisation']:.0%}{full}")


def goal(name):
    wanted = GOALS[name]
    texts = [f"≤ {wanted['us']} µs" if "us" in wanted else "", f"user ≤ {wanted['user_us']}" if "user_us" in wanted else "",
             f"≤ {wanted['share']} × Kamailio's" if "share" in wanted else "",
             f"≥ {wanted['ratio']} ×" if "ratio" in wanted else "", f"≥ {wanted['peak']:,}/s" if "peak" in wanted else ""]
    return ", ".join(text for text in texts if text)


def verdict(here, scaled):
    return "yes" if here else "yes, scaled" if scaled else "no"


def generator_full(row):
    """The generator had no time left, or fell behind its own arrivals."""
    return row["generator_utilisation"] > 0.93 or row["offered"] < 0.97 * row["rate"]


def show(row):
    """One line for the terminal while it runs."""
    flag = "" if row["kept_up"] else "  DID NOT KEEP UP"
    flag += "  generator full" if generator_full(row) else ""
    return (f"{row['scenario']:16} {row['server']:10} {row['what']:11} {row['rate']:7}/s  {row['us']:7.1f} us"
            f" ({row['user_us']:.1f} + {row['system_us']:.1f})  util {row['utilisation']:.2f}"
            f"  gen {row['generator_utilisation']:.2f}  done {row['done']}/{row['started']}"
            f"  p99 {row['p99_ms']:.2f} ms{flag}")
