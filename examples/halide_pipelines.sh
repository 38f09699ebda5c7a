#!/usr/bin/env bash
# Halide, unmodified, under headroom, on any Linux machine: no GPU needed.
#
# Sets up and builds, installs Halide's Python package into a private folder of the build, and runs six pipelines (blur,
# histogram, matmul, bilateral grid, scan, resize) alone on a simulated GPU, and under headroom with two and four times the
# memory of the simulated GPU. Exits 0 only if the results agree with those that Halide gets on the CPU and are the same to
# the last bit alone and under headroom. --no-install checks for what is missing instead of installing it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/jobs/prepare.sh"
exec python3 examples/jobs/halide_compare.py build "${rest[@]}"
