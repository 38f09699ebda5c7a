#!/usr/bin/env bash
# The check on one NVIDIA GPU, eight minutes at most: tests/gpu/check.sh [OPTION]...
#
#   --build DIR     use what is built there (a build folder, or what --pack made); else build in build-gpu
#   --pack DIR      build, copy what a run needs to DIR, and end: for a machine that cannot build
#   --sim           the simulated GPU of the build: contract, probes, and jobs of the driver API
#   --few           less of everything (builds with a sanitizer)
#   --json FILE     write the table as JSON
#   --budget N      seconds for everything (default 460); what does not fit is skipped and said to be
#   --only PART     contract, probe, jobs, torch, cupy or jax; may be given more than once
#   --python FILE   the Python that has PyTorch, CuPy and JAX (default python3)
#
# HEADROOM_GPU_BUILD in the environment is --build. Compares jobs natively and under headroom with a cap on VRAM; fills no card,
# changes no setting of it and resets nothing. Prints one table. The status is 1 if a required row failed, 2 if nothing could be run.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${HEADROOM_GPU_BUILD:-}
pack=
python=python3
flags=()
needs() { [ $# -gt 1 ] || { echo "check: $1 needs a value" >&2; exit 2; }; }
while [ $# -gt 0 ]; do
    case $1 in
    --build) needs "$@"; build=$2; shift ;;
    --pack) needs "$@"; pack=$2; shift ;;
    --python) needs "$@"; python=$2; shift ;;
    --json | --budget | --only) needs "$@"; flags+=("$1" "$2"); shift ;;
    --sim | --few) flags+=("$1") ;;
    -h | --help)
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    *)
        echo "check: unknown option $1 (--help)" >&2
        exit 2
        ;;
    esac
    shift
done

if [ -z "$build" ]; then
    build=$root/build-gpu
    [ -f "$build/build.ninja" ] || meson setup "$build" "$root" >&2 || exit 2
    ninja -C "$build" gpu-programs simgpu-link.stamp >&2 || exit 2
fi
if [ ! -f "$build/libheadroom.so" ] || [ ! -x "$build/tests/gpu/contract" ]; then
    echo "check: $build has no libheadroom.so and tests/gpu/contract (ninja -C $build gpu-programs)" >&2
    exit 2
fi

if [ -n "$pack" ]; then
    mkdir -p "$pack/examples" "$pack/tests/clients" "$pack/tests/gpu"
    cp "$build/libheadroom.so" "$pack/"
    cp "$build/examples/train_gpt" "$pack/examples/"
    find "$build/tests/clients" -maxdepth 1 -type f -perm -u+x -exec cp {} "$pack/tests/clients/" \;
    cp "$build/tests/gpu/contract" "$build/tests/gpu/probe" "$pack/tests/gpu/"
    find "$pack" -type f -exec strip --strip-debug {} +
    du -sh "$pack"
    exit 0
fi

exec "$python" -B "$here/check.py" --build "$build" "${flags[@]}"
