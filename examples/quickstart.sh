#!/usr/bin/env bash
# headroom in five minutes, on any Linux machine: no GPU needed.
#
# Sets up and builds, then trains a small GPT that needs about four times the memory of its (simulated) GPU:
#   1. without headroom it ends in an out-of-memory error;
#   2. on a simulated GPU with memory enough it prints the losses it should;
#   3. with headroom it prints exactly the same on the small GPU;
#   4. the report tells what moved meanwhile.
# Exits 0 only if all four are so. --no-install checks for what is missing instead of installing it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
small=h200,vram=64M
large=h200
job=(build/examples/train_gpt --layers 18 --width 256 --heads 32 --context 64 --batch 1 --steps 4)

flags=()
for arg in "$@"; do
    case $arg in
    --no-install) flags+=("$arg") ;;
    -h | --help)
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' examples/quickstart.sh
        exit 0
        ;;
    *)
        echo "quickstart: unknown option $arg (--no-install, --help)" >&2
        exit 2
        ;;
    esac
done

say() { printf '\n== %s\n' "$*"; }
fail() {
    printf '\nquickstart: FAILED: %s\n' "$*" >&2
    exit 1
}

say "Set-up"
bash tests/setup.sh --build-only "${flags[@]}" build
[ ! -d build/venv/bin ] || PATH=$PWD/build/venv/bin:$PATH

say "Build"
[ -f build/build.ninja ] || meson setup build >build-setup.log 2>&1 || {
    cat build-setup.log
    fail "meson setup"
}
rm -f build-setup.log
ninja -C build headroom libheadroom.so simgpu-link.stamp examples/train_gpt | tail -n 1

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

say "1. On a GPU with 64 MiB, without headroom: headroom sim $small -- ${job[*]}"
refused=0
build/headroom sim "$small" -- "${job[@]}" >"$out/refused" 2>&1 || refused=$?
cat "$out/refused"
[ "$refused" -ne 0 ] || fail "the job fitted into 64 MiB"
grep -q CUDA_ERROR_OUT_OF_MEMORY "$out/refused" || fail "the job failed for another reason"

say "2. On a GPU with memory enough: headroom sim $large -- ${job[*]}"
build/headroom sim "$large" -- "${job[@]}" | tee "$out/reference" || fail "the reference run"

say "3. On the GPU with 64 MiB, with headroom: headroom run --sim $small -- ${job[*]}"
build/headroom run --sim "$small" --stats "$out/stats.jsonl" -- "${job[@]}" | tee "$out/virtual" || fail "the run with headroom"
cmp "$out/reference" "$out/virtual" || fail "the two runs printed different results"
grep -q '^weights sha256 ' "$out/virtual" || fail "the job printed no weights"
printf '\nThe same losses and the same weights, bit for bit.\n'

say "4. What headroom did: headroom report"
build/headroom report --sites 4 "$out/stats.jsonl" || fail "the report"
build/headroom report --json "$out/stats.jsonl" | python3 -c '
import json, sys
(run,) = json.load(sys.stdin)
assert run["complete"], "the log has no summary"
counters = run["summary"]["counters"]
assert counters["moved_in_bytes"] > 0 and counters["moved_out_bytes"] > 0, "nothing moved"
' || fail "the stats log"

printf '\nquickstart: all four steps did what they should\n'
