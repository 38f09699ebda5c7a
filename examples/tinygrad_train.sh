#!/usr/bin/env bash
# tinygrad, unmodified, under headroom, on any Linux machine: no GPU needed.
#
# Sets up and builds, installs tinygrad into a private folder of the build, and trains a small convolutional net and a small
# transformer with it: on tinygrad's CPU backend, alone on a simulated GPU, and under headroom with two and four times the
# memory of the simulated GPU. Exits 0 only if the losses fall, agree with the CPU backend's, and are the same to the last
# bit alone and under headroom. --no-install checks for what is missing instead of installing it; --settings runs more ways.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/jobs/prepare.sh"
exec python3 examples/jobs/tinygrad_compare.py build "${rest[@]}"
