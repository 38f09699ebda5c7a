#!/usr/bin/env python3
"""Every mutant of the library (mutants.py) fails the test of what it breaks, and the sound library passes it:
check_mutants.py TEST_LOAD FOLDER_OF_LIBRARIES."""
import os
import subprocess
import sys

NOTICED_BY = [
    ("unhooked", "load/K1_what*"), ("unhooked", "load/K9_*"), ("arity", "load/K2_K46_*"), ("offers", "load/K3_an_older*"),
    ("soname", "load/K10_*"), ("alike", "load/K12_*"), ("reentry", "load/K13_*"), ("failed", "load/K30_*"),
    ("exit", "load/K44_*"), ("flags", "load/K45_*"), ("names", "load/every_*"), ("child", "load/a_forked_*"),
]


def passes(program, library, only):
    result = subprocess.run([program, "--filter=" + only], env=dict(os.environ, TEST_LIBRARY=library), timeout=60,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if "Tested: 0" in result.stdout:
        sys.exit(f"no test is called {only}")
    return result.returncode == 0


def main():
    program, folder = sys.argv[1:]
    wrong = 0
    for mutant, only in NOTICED_BY:
        sound = passes(program, os.path.join(folder, "libheadroom_bare.so"), only)
        broken = not passes(program, os.path.join(folder, f"libmutant_{mutant}.so"), only)
        print(f"{'ok' if sound and broken else 'WRONG'}: {only}: sound library "
              f"{'passes' if sound else 'fails'}, mutant {mutant} {'fails' if broken else 'passes'}")
        wrong += not (sound and broken)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
