"""Counting the instructions of a server while it does something."""
import re

from .process import fail, find, run


class Callgrind:
    """callgrind around a server: its count is set to zero, and read later."""

    def __init__(self, work):
        self.out = work / "callgrind"
        for old in work.glob("callgrind*"):
            old.unlink()
        self.words = [find("valgrind"), "--tool=callgrind", f"--callgrind-out-file={self.out}", "--cache-sim=no",
                      "--dump-line=no"]

    def zero(self, pid):
        run([find("callgrind_control"), "-z", pid], timeout=60)

    def count(self, pid):
        """Instructions since the count was zero."""
        run([find("callgrind_control"), "-d", pid], timeout=60)
        dumps = sorted(self.out.parent.glob("callgrind.*"), key=lambda path: path.stat().st_mtime)
        counts = [int(match) for path in dumps for match in re.findall(r"^(?:totals|summary): (\d+)", path.read_text(), re.M)]
        return counts[-1] if counts else fail("callgrind wrote no count")
