#!/usr/bin/env python3
"""What check.py decides without a GPU: budget, table, comparisons, verdicts, what is run in which order."""
import contextlib
import io
import json
import os
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
import check  # noqa: E402
import table  # noqa: E402


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def done(stdout="", returncode=0, stderr="", seconds=1.0, timed_out=False):
    return check.Done(returncode, stdout, stderr, seconds, timed_out)


def result(values, peak=4 << 30, step=0.1):
    return done("noise\n" + json.dumps({"results": values, "peak_bytes": peak, "step_seconds": step}) + "\n")


class Runner:
    """Stands for run_step: answers in turn, natively and under headroom, and writes a stats log as the library would."""

    def __init__(self, native, capped, moved=1 << 20, clock=None, takes=0.0, counters=None):
        self.counters = {"launches": 3, "peak_vram_bytes": 32 << 20} if counters is None else counters
        self.native, self.capped, self.moved, self.clock, self.takes = list(native), list(capped), moved, clock, takes
        self.calls = []

    def __call__(self, command, env, seconds):
        self.calls.append((command, env, seconds))
        if self.clock:
            self.clock.now += self.takes
        if "LD_PRELOAD" not in env:
            return self.native.pop(0) if len(self.native) > 1 else self.native[0]
        with open(env["HEADROOM_STATS"].replace("%p", "7"), "w", encoding="utf-8") as f:
            f.write(json.dumps({"type": "summary", "counters": {"moved_out_bytes": self.moved, **self.counters}}) + "\n")
        return self.capped.pop(0) if len(self.capped) > 1 else self.capped[0]


def checked(runner, budget=None, sim=False):
    return check.Check("/b", sim, False, budget or table.Budget(1000), table.Table(), runner)


class BudgetTest(unittest.TestCase):
    def test_grants_what_is_left_and_then_nothing(self):
        clock = Clock()
        budget = table.Budget(100, clock)
        self.assertEqual(budget.grant(60), 60)
        clock.now += 70
        self.assertEqual(budget.grant(60), 30)
        clock.now += 28
        self.assertIsNone(budget.grant(60))
        clock.now += 50
        self.assertEqual(budget.left(), 0)
        self.assertEqual(budget.spent(), 148)


class TableTest(unittest.TestCase):
    def test_only_required_rows_fail(self):
        rows = table.Table()
        rows.add("contract", "a", "ok", "x", True)
        rows.add("probe", "b", "different", "x", False)
        self.assertEqual(rows.failed(), [])
        for verdict in table.BAD:
            rows.add("contract", verdict, verdict, "x", True)
        self.assertEqual([row["name"] for row in rows.failed()], list(table.BAD))

    def test_what_was_skipped_or_lacks_does_not_fail(self):
        rows = table.Table()
        rows.add("torch", "a", "skipped", "no time was left", True)
        rows.add("contract", "b", "not supported", "x", True)
        self.assertEqual(rows.failed(), [])

    def test_markdown_has_a_row_for_each_and_survives_pipes(self):
        rows = table.Table()
        rows.add("jobs", "a|b", "ok", "two\nlines", True, 1.25)
        lines = rows.markdown().splitlines()
        self.assertEqual(len(lines), 3)
        self.assertEqual(lines[2], "| jobs | a/b | yes | ok | 1.2 | two lines |")
        self.assertEqual(rows.counts(), "1 ok")


class TextTest(unittest.TestCase):
    def test_broken_lines_are_left_out(self):
        self.assertEqual(table.json_lines('x\n{"a": 1}\n{"a": \n{"b": 2}'), [{"a": 1}, {"b": 2}])
        self.assertIsNone(table.last_object("nothing"))

    def test_counters_of_processes_add_up_each_by_its_last_line(self):
        first = '{"counters": {"moved_in_bytes": 1}}\n{"counters": {"moved_in_bytes": 5}}\n{"counters": {"moved'
        self.assertEqual(table.stats_counters([first, '{"counters": {"moved_in_bytes": 2}}', '{"type": "start"}']),
                         {"moved_in_bytes": 7})

    def test_results_differ_by_one_bit(self):
        self.assertIsNone(table.first_difference(["0x1.8p+1"], ["0x1.8p+1"]))
        self.assertIn("result 1", table.first_difference(["0x1p+0", "0x1.8p+1"], ["0x1p+0", "0x1.8000000000001p+1"]))
        self.assertIn("1 results, natively 2", table.first_difference(["a", "b"], ["a"]))

    def test_the_bound_is_the_slower_of_link_and_job(self):
        rates = table.rates_of([{"name": "copy-rates.to-device", "value": 40.0, "unit": "GB/s"},
                                {"name": "copy-rates.chunks-to-device", "value": 50.0, "unit": "GB/s"},
                                {"name": "copy-rates.both-ways-each", "value": 25.0, "unit": "GB/s"},
                                {"name": "launch-cost", "value": 3.0, "unit": "us"}])
        self.assertEqual(rates, {"in": 50.0, "out": None, "both": 25.0})
        self.assertEqual(table.bound_seconds(0.01, 5_000_000_000, 2_500_000_000, rates), 0.1)
        self.assertEqual(table.bound_seconds(0.5, 5_000_000_000, 2_500_000_000, rates), 0.5)
        self.assertIsNone(table.bound_seconds(0.5, 5, 2, {"in": None}))
        self.assertIn("0.50 of native", table.throughput(0.2, 0.1, 0.1))
        self.assertIn("no time", table.throughput(None, 0.1, 0.1))


    def test_contexts_come_out_of_the_setting(self):
        def rows(total, gone):
            return [{"name": "attributes.memory", "value": total, "unit": "MiB"}, {"name": "attributes.gone", "value": gone, "unit": "MiB"}]
        self.assertEqual(table.overhead_bytes(rows(140000.0, 500.0)), 500 << 20)
        self.assertEqual(table.overhead_bytes(rows(140000.0, 90000.0)), 1 << 30)  # others are on the card
        self.assertEqual(table.overhead_bytes(rows(256.0, 10.0)), 10 << 20)
        self.assertEqual(table.overhead_bytes([]), 0)
        for wanted in (16 << 20, 3 << 30, 100 << 30):
            setting = table.setting_bytes(wanted, 500 << 20)
            left = setting - min(setting // 64, 256 << 20) - (500 << 20)
            self.assertTrue(wanted <= left <= wanted + 4096, (wanted, left))


class JobTest(unittest.TestCase):
    def rows(self, native, capped, **more):
        got = checked(Runner([native], [capped], **more))
        got.job("job", ["job"], 256 << 20, (2, 4))
        return got.table.rows

    def test_the_same_output_with_memory_moved_is_ok(self):
        self.assertEqual([row["verdict"] for row in self.rows(done("7\n"), done("7\n"))], ["ok", "ok"])

    def test_another_output_or_nothing_moved_is_different(self):
        self.assertEqual([row["verdict"] for row in self.rows(done("7\n"), done("8\n"))], ["different"] * 2)
        self.assertEqual([row["verdict"] for row in self.rows(done("7\n"), done("7\n"), moved=0)], ["different"] * 2)

    def test_failures_and_hangs_say_so(self):
        self.assertEqual([row["verdict"] for row in self.rows(done(returncode=1, stderr="x\nwhy"), done())], ["failed"])
        rows = self.rows(done("7\n"), done(returncode=-9, timed_out=True))
        self.assertEqual([(row["verdict"], row["required"]) for row in rows], [("timeout", True)] * 2)


class FrameworkTest(unittest.TestCase):
    def run_case(self, runner, factor=2):
        got = checked(runner)
        case = check.Framework("torch", "case", ["job"], {"A": "1"})
        if case.first(got):
            case.capped(got, factor)
        return got.table.rows

    def test_identical_losses_are_ok_without_a_second_native_run(self):
        runner = Runner([result(["a"])], [result(["a"], step=0.2)])
        rows = self.run_case(runner)
        self.assertEqual([(row["verdict"], row["required"]) for row in rows], [("ok", True)])
        self.assertEqual(len(runner.calls), 2)
        self.assertEqual(runner.calls[1][1]["HEADROOM_VRAM"], str(table.setting_bytes(2 << 30, 0)))
        self.assertEqual(runner.calls[1][1]["A"], "1")
        self.assertIn("0.50 of native", rows[0]["saw"])

    def test_other_losses_fail_where_native_repeats_itself(self):
        rows = self.run_case(Runner([result(["a"]), result(["a"])], [result(["b"])]))
        self.assertEqual([(row["verdict"], row["required"]) for row in rows], [("different", True)])

    def test_other_losses_are_told_where_native_does_not_repeat_itself(self):
        rows = self.run_case(Runner([result(["a"]), result(["c"])], [result(["b"])]))
        self.assertEqual([(row["verdict"], row["required"]) for row in rows], [("seen", False)])

    def test_identical_losses_do_not_help_a_job_that_escaped(self):
        for more, what in (({"counters": {}}, "not in use"), ({"moved": 0}, "not in effect"),
                           ({"counters": {"launches": 1, "peak_vram_bytes": 3 << 30}}, "the cap is 2048")):
            rows = self.run_case(Runner([result(["a"])], [result(["a"])], **more))
            self.assertEqual([(row["verdict"], row["required"]) for row in rows], [("different", True)])
            self.assertIn(what, rows[0]["saw"])

    def test_without_a_cap_nothing_needs_to_move(self):
        self.assertEqual(self.run_case(Runner([result(["a"])], [result(["a"])], moved=0), 0)[0]["verdict"], "ok")

    def test_a_missing_framework_is_skipped(self):
        rows = self.run_case(Runner([done('{"missing": "no torch"}\n', check.MISSING)], [done()]))
        self.assertEqual([(row["verdict"], row["saw"]) for row in rows], [("skipped", "no torch")])

    def test_a_native_failure_and_one_under_headroom_fail(self):
        self.assertEqual(self.run_case(Runner([done(returncode=1)], [done()]))[0]["verdict"], "failed")
        rows = self.run_case(Runner([result(["a"])], [done(returncode=1, stderr="out of memory")]))
        self.assertEqual((rows[0]["verdict"], rows[0]["required"]), ("failed", True))
        self.assertIn("out of memory", rows[0]["saw"])

    def test_a_quarter_waits_until_all_had_a_half_and_the_budget_ends_in_skipped_rows(self):
        clock = Clock()
        runner = Runner([result(["a"])], [result(["a"])], clock=clock, takes=10.0)
        got = checked(runner, table.Budget(65, clock))
        cases = [check.Framework("torch", name, [name]) for name in ("x", "y")]
        check.run_frameworks(got, cases)
        self.assertEqual([(row["name"], row["verdict"]) for row in got.table.rows],
                         [("x, 1/2 of its memory", "ok"), ("y, 1/2 of its memory", "ok"), ("x, 1/4 of its memory", "ok"),
                          ("y, 1/4 of its memory", "ok"), ("x, no cap", "ok"), ("y, no cap", "skipped")][:len(got.table.rows)])
        self.assertEqual(got.table.rows[-1]["verdict"], "skipped")
        self.assertLessEqual(runner.calls[-1][2], check.STEP_S)

    def test_every_case_that_is_promised_is_there(self):
        commands = [" ".join(case.command[1:]) for case in check.frameworks("python3")]
        for flag in ("--model gpt", "--model conv", "--bf16", "--graph", "--workers"):
            self.assertTrue(any(flag in command for command in commands), flag)
        self.assertTrue(any("expandable_segments:True" in case.env.values() for case in check.frameworks("python3")))
        for part in check.PARTS[3:]:
            self.assertTrue(any(case.part == part for case in check.frameworks("python3")), part)
        for case in check.frameworks("python3"):
            self.assertTrue(os.path.exists(case.command[1]), case.command[1])


class ProgramTest(unittest.TestCase):
    ROW = {"program": "contract", "name": "n", "says": "s", "required": False, "verdict": "different", "saw": "x"}

    def rows(self, answer, part="contract", sim=False):
        got = checked(Runner([answer], [done()]), sim=sim)
        usable = got.program(part, 90)
        return usable, got

    def test_rows_are_taken_over_and_on_simgpu_the_contract_is_required(self):
        for sim in (False, True):
            usable, got = self.rows(done(json.dumps(self.ROW) + "\n"), sim=sim)
            self.assertTrue(usable)
            self.assertEqual(len(got.table.failed()), int(sim))

    def test_a_program_without_rows_fails_and_no_gpu_ends_the_check(self):
        usable, got = self.rows(done("", 1, "dead"))
        self.assertTrue(usable)
        self.assertEqual(len(got.table.failed()), 1)
        self.assertFalse(self.rows(done("", 2, "no driver"))[0])


class StepTest(unittest.TestCase):
    def test_what_hangs_is_ended_with_what_it_started(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "pid")
            got = check.run_step(["sh", "-c", f"echo before; sh -c 'echo $$ > {path}; exec sleep 60' & wait"], {}, 1)
            self.assertTrue(got.timed_out)
            self.assertIn("before", got.stdout)
            with open(path, encoding="utf-8") as f:
                pid = int(f.read())
            self.assertTrue(self.gone(pid))

    @staticmethod
    def gone(pid, most_s=10):
        """Whether the process is over: not there, or waiting to be reaped by whoever got it."""
        end = time.monotonic() + most_s
        while time.monotonic() < end:
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                    if f.read().rsplit(")", 1)[1].split()[0] in "ZX":
                        return True
            except (FileNotFoundError, ProcessLookupError):
                return True
            time.sleep(0.01)
        return False

    def test_output_and_status_come_back(self):
        got = check.run_step(["sh", "-c", "echo $X; exit 3"], {"X": "9"}, 20)
        self.assertEqual((got.returncode, got.stdout, got.timed_out), (3, "9\n", False))


class JsonTest(unittest.TestCase):
    def test_the_file_has_rows_and_what_failed(self):
        got = checked(Runner([done()], [done()]))
        got.table.add("probe", "attributes.name", "seen", "A GPU")
        got.table.add("contract", "n", "different", "x", True)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.json")
            check.write_json(path, got, 1.0)
            with open(path, encoding="utf-8") as f:
                read = json.load(f)
        self.assertEqual((read["gpu"], read["failed"], len(read["rows"])), ("A GPU", ["n"], 2))


class SyntaxTest(unittest.TestCase):
    def test_jobs_compile(self):
        for name in ("torch_train.py", "smoke_cupy.py", "smoke_jax.py"):
            with open(os.path.join(check.HERE, name), encoding="utf-8") as f, contextlib.redirect_stderr(io.StringIO()):
                compile(f.read(), name, "exec")


if __name__ == "__main__":
    unittest.main()
