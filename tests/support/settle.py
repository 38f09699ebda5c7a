"""What the scripts that write documents from sources end with."""
import os
import sys


def settle(path, new, write, complaint):
    """Writes the document (write), or ends the program with the complaint where its text is not `new`."""
    if write:
        with open(path, "w", encoding="utf-8") as f:
            f.write(new)
        return
    old = None
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            old = f.read()
    if old != new:
        sys.exit(complaint)
