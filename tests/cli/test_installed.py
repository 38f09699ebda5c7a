#!/usr/bin/env python3
"""An installed headroom finds its library and simgpu: also when staged with DESTDIR, and when moved as a whole.

test_installed.py MESON BUILD_DIR PREFIX BINDIR LIBDIR MANDIR PROBE
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

MESON, BUILD, PREFIX, BINDIR, LIBDIR, MANDIR, PROBE = sys.argv[1:8]
SUBCOMMANDS = ("run", "sim", "report", "topo", "doctor")


def environment_of_job(command, name):
    clean = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "LD_LIBRARY_PATH", "SIMGPU", "HEADROOM_DRIVER")}
    done = subprocess.run([command, "run", "--sim", "h200", "--", PROBE, "env", name], env=clean, capture_output=True,
                          text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="headroom-installed-")
        cls.stage = os.path.join(cls.folder, "stage")
        subprocess.run([MESON, "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", cls.stage], check=True)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def check(self, root):
        command = os.path.join(root, BINDIR, "headroom")
        libdir = os.path.realpath(os.path.join(root, LIBDIR, "headroom"))
        self.assertEqual(environment_of_job(command, "LD_PRELOAD"), os.path.join(libdir, "libheadroom.so"))
        self.assertEqual(environment_of_job(command, "HEADROOM_DRIVER"), os.path.join(libdir, "simgpu", "libcuda.so.1"))
        self.assertEqual(environment_of_job(command, "LD_LIBRARY_PATH"), os.path.join(libdir, "simgpu"))

    def test_staged(self):
        self.check(self.stage + PREFIX)

    def test_moved(self):
        moved = os.path.join(self.folder, "moved")
        shutil.copytree(self.stage + PREFIX, moved, symlinks=True)
        self.check(moved)

    def test_reached_through_a_link(self):
        link = os.path.join(self.folder, "hr")
        os.symlink(os.path.join(self.stage + PREFIX, BINDIR, "headroom"), link)
        libdir = os.path.realpath(os.path.join(self.stage + PREFIX, LIBDIR, "headroom"))
        self.assertEqual(environment_of_job(link, "LD_PRELOAD"), os.path.join(libdir, "libheadroom.so"))

    def test_the_doctor_finds_what_is_installed(self):
        command = os.path.join(self.stage + PREFIX, BINDIR, "headroom")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "SIMGPU", "HEADROOM_"))}
        done = subprocess.run([command, "doctor", "--sim", "h200,vram=64M", PROBE], env=clean, capture_output=True, text=True,
                              check=False, stdin=subprocess.DEVNULL)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertIn(os.path.realpath(os.path.join(self.stage + PREFIX, LIBDIR, "headroom", "libheadroom.so")), done.stdout)

    def test_the_manual_has_what_help_says(self):
        folder = os.path.join(self.stage + PREFIX, MANDIR, "man1")
        command = os.path.join(self.stage + PREFIX, BINDIR, "headroom")
        self.assertEqual(sorted(os.listdir(folder)), sorted(["headroom.1"] + ["headroom-%s.1" % s for s in SUBCOMMANDS]))
        for subcommand in (None,) + SUBCOMMANDS:
            path = os.path.join(folder, "headroom-%s.1" % subcommand if subcommand else "headroom.1")
            with open(path, encoding="utf-8") as f:
                page = re.sub(r"\\&|\\\(..", lambda m: {"\\(ga": "`", "\\(aq": "'", "\\(ti": "~"}.get(m.group(), ""),
                              f.read()).replace("\\-", "-")
            said = subprocess.run([command] + ([subcommand] if subcommand else []) + ["--help"], capture_output=True, text=True,
                                  check=True).stdout
            for word in set(said.split()) - {"headroom", "0.1.0:"}:
                self.assertIn(word, page, "%s lacks a word of --help" % path)
            if shutil.which("man"):
                shown = subprocess.run(["man", "--warnings", "-l", path], capture_output=True, text=True, check=True,
                                       stdin=subprocess.DEVNULL)
                self.assertEqual(shown.stderr, "")
                self.assertIn("SYNOPSIS", shown.stdout)

    def test_nothing_installed_is_one_line(self):
        alone = os.path.join(self.folder, "alone", "headroom")
        os.makedirs(os.path.dirname(alone))
        shutil.copy2(os.path.join(BUILD, "headroom"), alone)
        if os.path.exists(os.path.join(PREFIX, LIBDIR, "headroom", "libheadroom.so")):
            self.skipTest("headroom is installed on this machine")
        done = subprocess.run([alone, "run", "--", PROBE, "exit", "0"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("libheadroom.so is in none of", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
