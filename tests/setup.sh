#!/usr/bin/env bash
# Set-up shared by examples/quickstart.sh and tests/run.sh: what building and testing need, on Debian and Ubuntu.
#
#   tests/setup.sh [--no-install] [--build-only] [--jobs] [BUILD_DIR...]
#
# Installs what is missing through apt (as root or through sudo) and says what. --no-install only checks, and names in
# one line what is missing. --build-only asks for what building and running need, without the test and lint tools; --jobs
# adds to it what the example jobs of other makers need (without --build-only it is included): the Python packages of
# examples/jobs/requirements.txt, about 90 MB from the Python package index, go into jobs-venv of the first BUILD_DIR.
# Into every BUILD_DIR (default: build) goes a cuda-include folder with cuda.h if this machine has none of CUDA 13: it
# comes from the Python package nvidia-cuda-runtime, of which only the headers are unpacked. Without --build-only the packages
# of tests/check/packages.txt (11 MB) are unpacked into cuda-packages of the first BUILD_DIR, as far as they can be had: their
# headers and runtimes are compared with the hook table by tests that otherwise say that they are not here.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
install=yes
tests=yes
jobs=yes
builds=()
for arg in "$@"; do
    case $arg in
    --no-install) install=no ;;
    --build-only) tests=no jobs=${jobs_asked:-no} ;;
    --jobs) jobs=yes jobs_asked=yes ;;
    -h | --help)
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    -*)
        echo "setup: unknown option $arg (--no-install, --build-only, --jobs, --help)" >&2
        exit 2
        ;;
    *) builds+=("$arg") ;;
    esac
done
[ ${#builds[@]} -gt 0 ] || builds=("$root/build")

jobs_venv=${builds[0]}/jobs-venv
cuda_packages=${builds[0]}/cuda-packages

have() { command -v "$1" >/dev/null 2>&1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

has_header() { echo "#include <$1>" | gcc -E -x c - >/dev/null 2>&1; }

has_sanitizers() {
    have clang || return 1
    echo 'int main(void) { return 0; }' >"$work/probe.c"
    clang -fsanitize=address,undefined "$work/probe.c" -o "$work/probe" >/dev/null 2>&1 &&
        clang -fsanitize=thread "$work/probe.c" -o "$work/probe" >/dev/null 2>&1
}

has_libc() {
    have gcc || return 1
    echo 'int main(void) { return 0; }' >"$work/probe.c"
    gcc "$work/probe.c" -o "$work/probe" -lpthread -lm >/dev/null 2>&1
}

# A library that the loader would preload, as tests do with other people's allocators.
has_preload() { [ -z "$(LD_PRELOAD=$1 /bin/sh -c : 2>&1)" ]; }

# The first of the named packages that apt knows; the first of all if apt knows none.
known_package() {
    for name in "$@"; do
        if apt-cache show "$name" >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    echo "$1"
}

meson_is_new() { # 1.0 or newer; an old one of the distribution is passed over for one of our own (below)
    have meson && [ "$(printf '%s\n1.0\n' "$(meson --version)" | sort -V | head -n 1)" = 1.0 ]
}

cuda_h_found() { python3 "$root/hooks/find_cuda_h.py" "$1" >/dev/null 2>&1; }

# The packages are as the file of requirements says, and the Python that they were installed for still runs.
have_jobs() {
    cmp -s "$root/examples/jobs/requirements.txt" "$jobs_venv/requirements.txt" && "$jobs_venv/bin/python" -c '' 2>/dev/null
}

# Fills `missing` with the names of packages, each behind a check of the thing itself.
find_missing() {
    missing=()
    has_libc || missing+=(gcc libc6-dev)
    have clang || missing+=(clang)
    have ninja || missing+=(ninja-build)
    have meson || [ -x "$root/build/venv/bin/meson" ] || missing+=(meson)
    have pkg-config || missing+=(pkg-config)
    have python3 || missing+=(python3)
    have addr2line || missing+=(binutils)
    have cmp || missing+=(diffutils)
    pkg-config --exists libunwind 2>/dev/null || missing+=(libunwind-dev)
    pkg-config --exists libcjson 2>/dev/null || missing+=(libcjson-dev)
    pkg-config --exists expat 2>/dev/null || missing+=(libexpat1-dev)
    has_header uthash.h || missing+=(uthash-dev)
    has_header expat.h || missing+=(libexpat1-dev)
    pkg-config --exists criterion 2>/dev/null || missing+=(libcriterion-dev)
    if [ "$tests" = yes ]; then
        have clang-tidy || missing+=(clang-tidy)
        have clang-format || missing+=(clang-format)
        has_sanitizers || missing+=("$(known_package libclang-rt-dev libclang-rt-14-dev libclang-common-14-dev)")
        has_preload libjemalloc.so.2 || missing+=(libjemalloc2)
        has_preload libtcmalloc_minimal.so.4 || missing+=("$(known_package libtcmalloc-minimal4 libtcmalloc-minimal4t64)")
        have g++ || missing+=(g++)
        have gdb || missing+=(gdb)
        have llvm-symbolizer || have llvm-symbolizer-14 || missing+=(llvm)
    fi
    need_jobs=no
    if [ "$jobs" = yes ] && ! have_jobs; then
        need_jobs=yes
        python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || missing+=(python3-venv)
    fi
    need_wheel=no
    for build in "${builds[@]}"; do
        have python3 && cuda_h_found "$build" || need_wheel=yes
    done
    need_meson=no
    if have meson && ! meson_is_new && [ ! -x "$root/build/venv/bin/meson" ]; then
        need_meson=yes
    fi
    if [ "$need_meson" = yes ] && [ "$need_jobs" = no ]; then
        python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || missing+=(python3-venv)
    fi
    if [ "$need_wheel" = yes ]; then
        python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
    fi
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif have sudo && [ -t 0 ] && [ -z "${CI:-}" ]; then
        sudo "$@"
    elif have sudo; then
        sudo -n "$@"
    else
        echo "setup: neither root nor sudo: cannot install" >&2
        return 1
    fi
}

install_packages() {
    if ! have apt-get; then
        echo "setup: no apt-get on this machine; install by hand what these Debian packages hold: ${missing[*]}" >&2
        exit 1
    fi
    echo "setup: installing ${missing[*]}"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
        >"$work/apt.log" 2>&1 || {
        tail -n 20 "$work/apt.log" >&2
        echo "setup: apt-get could not install: ${missing[*]}" >&2
        exit 1
    }
}

# Headers of the pinned wheel, downloaded once and unpacked into every build folder that needs them.
unpack_cuda_h() {
    echo "setup: no cuda.h of CUDA 13 here: unpacking the headers of the Python package nvidia-cuda-runtime"
    python3 -m pip download -q --no-deps --only-binary :all: --dest "$work" 'nvidia-cuda-runtime==13.0.*' || {
        echo "setup: could not download nvidia-cuda-runtime (set CUDA_HOME to a CUDA 13 toolkit instead)" >&2
        exit 1
    }
    for build in "${builds[@]}"; do
        cuda_h_found "$build" && continue
        mkdir -p "$build"
        python3 - "$work" "$build/cuda-include" <<'PY'
import glob, os, sys, zipfile
(wheel,) = glob.glob(os.path.join(sys.argv[1], "*.whl"))
with zipfile.ZipFile(wheel) as z:
    for name in z.namelist():
        head, mark, tail = name.partition("/include/")
        if mark and tail and not name.endswith("/"):
            path = os.path.join(sys.argv[2], tail)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as f:
                f.write(z.read(name))
PY
    done
}

# Headers and runtimes of other CUDA versions, for tests only: without them those tests compare less, and say so.
unpack_packages() {
    echo "setup: unpacking the headers and runtimes of tests/check/packages.txt into $cuda_packages"
    rm -rf "$cuda_packages"
    while read -r package; do
        case $package in '' | '#'*) continue ;; esac
        rm -rf "$work/package" && mkdir "$work/package"
        echo "$package" >"$work/package.txt"
        python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
            --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux1_x86_64 \
            --dest "$work/package" -r "$work/package.txt" || {
            echo "setup: could not download ${package%% *}: the checks of headers and runtimes compare less" >&2
            rm -rf "$cuda_packages"
            return 0
        }
        python3 - "$work/package" "$cuda_packages" <<'PY'
import glob, os, sys, zipfile
(wheel,) = glob.glob(os.path.join(sys.argv[1], "*.whl"))
folder = os.path.join(sys.argv[2], os.path.basename(wheel).split("-py3")[0])
os.makedirs(folder)
with zipfile.ZipFile(wheel) as z:
    for name in z.namelist():
        base = os.path.basename(name)
        if base in ("cuda.h", "cudaTypedefs.h", "cudaProfiler.h", "nvml.h") or base.startswith("libcudart.so"):
            with open(os.path.join(folder, base), "wb") as f:
                f.write(z.read(name))
PY
    done <"$root/tests/check/packages.txt"
    cp "$root/tests/check/packages.txt" "$cuda_packages/packages.txt"
}

install_jobs() {
    echo "setup: installing tinygrad, Halide and numpy into $jobs_venv"
    python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || {
        echo "setup: tinygrad and Halide need Python 3.11, 3.12 or 3.13; this is $(python3 --version)" >&2
        exit 1
    }
    rm -rf "$jobs_venv"
    python3 -m venv "$jobs_venv"
    "$jobs_venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: \
        --require-hashes -r "$root/examples/jobs/requirements.txt" || {
        echo "setup: could not install the packages of examples/jobs/requirements.txt: they come from the Python" \
            "package index, which pip did not reach or which did not have them" >&2
        exit 1
    }
    cp "$root/examples/jobs/requirements.txt" "$jobs_venv/requirements.txt"
}

find_missing
if [ "$install" = no ]; then
    [ "$need_wheel" = no ] || missing+=("cuda.h of CUDA 13")
    [ "$need_meson" = no ] || missing+=("meson 1.0 or newer")
    [ "$need_jobs" = no ] || missing+=("the Python packages of examples/jobs/requirements.txt")
    if [ ${#missing[@]} -gt 0 ]; then
        list=$(printf ', %s' "${missing[@]}")
        echo "setup: missing: ${list:2}" >&2
        exit 1
    fi
    echo "setup: nothing is missing"
    exit 0
fi

# A second look after installing: with python3 and meson there, more can be checked.
for _ in 1 2; do
    [ ${#missing[@]} -eq 0 ] && break
    install_packages
    hash -r
    find_missing
done
if [ ${#missing[@]} -gt 0 ]; then
    echo "setup: still missing after installing: ${missing[*]}" >&2
    exit 1
fi
if [ "$need_meson" = yes ]; then
    echo "setup: meson here is older than 1.0: installing one into $root/build/venv"
    python3 -m venv "$root/build/venv"
    "$root/build/venv/bin/python" -m pip install -q 'meson>=1.0,<2'
fi
[ "$need_wheel" = no ] || unpack_cuda_h
[ "$need_jobs" = no ] || install_jobs
[ "$tests" = no ] || cmp -s "$root/tests/check/packages.txt" "$cuda_packages/packages.txt" || unpack_packages
echo "setup: everything is there"
