#!/usr/bin/env python3
"""Items that die, hang, fail or break their context cost themselves and no other: test_items.py PROGRAM, on simgpu (TEST_SIMGPU)."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else ""


def run(*args, **env):
    simgpu = {"LD_LIBRARY_PATH": os.environ.get("TEST_SIMGPU", ""), "SIMGPU": "h200,vram=64M", "SIMGPU_LOG": "off"}
    done = subprocess.run([PROGRAM, *args], env={**os.environ, **simgpu, **env}, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=100, check=False)
    return done, [json.loads(line) for line in done.stdout.splitlines()]


class ItemsTest(unittest.TestCase):
    def test_each_gets_its_row_and_the_next_one_works(self):
        done, rows = run("--item-seconds", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        got = [(row["name"], row["verdict"]) for row in rows]
        self.assertEqual(got, [("good-1", "ok"), ("good-1.number", "seen"), ("dies", "died"), ("good-2", "ok"), ("leaves", "died"),
                               ("hangs", "hang"), ("good-3", "ok"), ("differs", "different"), ("good-4", "ok"),
                               ("fails", "failed"), ("lacks", "not supported"), ("faults", "ok"), ("faults", "failed"),
                               ("good-5", "ok")])
        by_name = {row["name"]: row for row in rows}
        self.assertEqual(by_name["good-1"]["saw"], '"quoted" \\ and done')
        self.assertEqual((by_name["good-1.number"]["value"], by_name["good-1.number"]["unit"]), (1.5, "us"))
        self.assertEqual(by_name["dies"]["saw"], "signal 9")
        self.assertEqual(by_name["leaves"]["saw"], "exit status 5")
        self.assertIn("CUDA_ERROR_INVALID_VALUE", by_name["fails"]["saw"])
        self.assertIn("CUDA_ERROR_ILLEGAL_ADDRESS", by_name["faults"]["saw"])
        self.assertTrue(by_name["dies"]["required"])
        self.assertFalse(by_name["differs"]["required"])

    def test_named_items_alone_run_and_unknown_ones_are_refused(self):
        _, rows = run("good-2", "good-4")
        self.assertEqual([row["name"] for row in rows], ["good-2", "good-4"])
        done, rows = run("no-such-item")
        self.assertEqual((done.returncode, rows), (2, []))
        self.assertIn("no-such-item", done.stderr)

    def test_without_time_items_are_skipped(self):
        _, rows = run("--seconds", "0", "good-1", "good-2")
        self.assertEqual([(row["name"], row["verdict"]) for row in rows], [("good-1", "skipped"), ("good-2", "skipped")])

    def test_without_a_driver_it_says_so(self):
        with tempfile.TemporaryDirectory() as folder:
            done, rows = run("good-1", LD_LIBRARY_PATH=folder)
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("this machine has a driver of its own")
        self.assertEqual((done.returncode, rows), (2, []))
        self.assertIn("no CUDA driver", done.stderr)


if __name__ == "__main__":
    if not PROGRAM:
        sys.exit("test_items: which program?")
    unittest.main()
