#!/usr/bin/env python3
"""Copy a file to a place that a build target cannot have, and note it: place.py SOURCE PLACE STAMP."""
import os
import shutil
import sys

source, place, stamp = sys.argv[1:]
os.makedirs(os.path.dirname(place), exist_ok=True)
shutil.copyfile(source, place + ".new")
os.replace(place + ".new", place)
open(stamp, "w", encoding="utf-8").close()
