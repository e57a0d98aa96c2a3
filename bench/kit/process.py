"""Child processes that end with us, and what the kernel says of them."""
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def fail(message):
    sys.exit(f"{Path(sys.argv[0]).stem}: {message}")


def find(program):
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    found = shutil.which(program, path=path)
    return found or fail(f"{program} is missing: `cargo xtask setup --bench` installs it")


def run(words, **options):
    """The output of a program that must succeed."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, **options)
    if done.returncode != 0:
        fail(f"{words[0]} failed ({done.returncode}):\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def fresh(directory):
    """An empty directory in place of whatever an earlier run left there."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


class Process:
    """A child in a session of its own, bound to some CPUs; its output goes to a file."""

    def __init__(self, name, words, work, cpus):
        self.name, self.log = name, work / f"{name}.log"
        with open(self.log, "w") as out:
            self.child = subprocess.Popen(
                [find("taskset"), "-c", cpus, *map(str, words)],
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


def threads(root):
    """Seconds on a CPU of each thread, as [(name, seconds)], by schedstat: nanoseconds."""
    found = []
    for pid in tree(root):
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
                found.append(((task / "comm").read_text().strip(), seconds))
        except OSError:
            pass
    return found


def cpu(root):
    """(seconds on a CPU, user ticks, system ticks) of a process and its descendants.

    The seconds are exact. The ticks come from `utime` and `stime`, which the kernel samples; they
    serve to split the seconds.
    """
    user = system = 0
    for pid in tree(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        user, system = user + int(fields[11]), system + int(fields[12])
    return sum(seconds for _, seconds in threads(root)), user, system


def memory(root):
    """Resident bytes of a process and its descendants; a page that some share counts once."""
    kibibytes = 0
    for pid in tree(root):
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    kibibytes += int(line.split()[1])
        except OSError:
            pass
    return kibibytes * 1024
