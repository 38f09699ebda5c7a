#!/usr/bin/env python3
"""Count what a meson test run did: tally.py TESTLOG_JSON prints "PASSED FAILED SKIPPED".

A program that ends with Criterion's closing line counts as the tests it ran; any other as one. A program that failed
counts at least one failure, whatever it printed.
"""
import json
import re
import sys

CLOSING = re.compile(r"Synthesis: Tested: *(\d+) *\| *Passing: *(\d+) *\| *Failing: *(\d+) *\| *Crashing: *(\d+)"
                     r"(?: *\| *Skipped: *(\d+))?")
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def main():
    passed = failed = skipped = 0
    with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
        for line in log:
            entry = json.loads(line)
            text = ESCAPE.sub("", (entry.get("stdout") or "") + (entry.get("stderr") or ""))
            closing = CLOSING.search(text)
            good = entry["result"] in ("OK", "EXPECTEDFAIL")
            if entry["result"] == "SKIP":
                skipped += 1
            elif closing:
                bad = int(closing.group(3)) + int(closing.group(4))
                passed += int(closing.group(2))
                skipped += int(closing.group(5) or 0)
                failed += bad if good else max(bad, 1)
            else:
                passed += good
                failed += not good
    print(passed, failed, skipped)


if __name__ == "__main__":
    main()
