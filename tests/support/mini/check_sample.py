#!/usr/bin/env python3
"""The sample's outcomes, told by the closing line and by the exit status: check_sample.py SAMPLE."""
import subprocess
import sys

done = subprocess.run([sys.argv[1]], capture_output=True, text=True, check=False)
closing = done.stderr.strip().split("\n")[-1]
assert closing == "[====] Synthesis: Tested: 12 | Passing: 5 | Failing: 6 | Crashing: 1 | Skipped: 2", done.stderr
assert done.returncode == 1, done.returncode
for name in ("fails_by_an_expectation", "fails_at_an_assertion", "fails_in_a_thread", "hangs", "crashes",
             "does_not_raise_what_it_said", "fails_for_one_of_three[1]"):
    assert "[FAIL] sample::" + name in done.stderr, name
assert "timed out" in done.stderr and "and goes no further" in done.stderr
# Cleaning up follows an assertion that fails, but not a thread's, a hang or a death.
assert done.stdout.count("cleaned up") == 8, done.stdout
one = subprocess.run([sys.argv[1], "--filter", "sample/passes"], capture_output=True, text=True, check=False)
assert one.returncode == 0 and "Passing: 1 |" in one.stderr, one.stderr
