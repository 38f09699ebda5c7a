#!/usr/bin/env bash
# Builds and tests everything: tests/run.sh [--long] [--no-install] [--only PART]
#
#   gcc     the default build (gcc), every test
#   asan    clang with AddressSanitizer and UndefinedBehaviorSanitizer, every test
#   tsan    clang with ThreadSanitizer, every test
#   fuzz    the fuzzers, 60 s in each of those three builds
#   tidy    clang-tidy over every C file that is built
#   format  clang-format over every C file and header
#
# --long gives the fuzzers and the tests that know it (HEADROOM_TEST_LONG) their long durations. --no-install only checks
# that everything needed is there. --only PART runs one part; it may be given more than once. Parts go on after failures;
# the last line counts: "N passed, N failed", and the exit status is 0 only if nothing failed.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
setup_flags=()
only=()
fuzz_seconds=${HEADROOM_FUZZ_SECONDS:-60}
timeout_factor=1
while [ $# -gt 0 ]; do
    case $1 in
    --long)
        export HEADROOM_TEST_LONG=1
        fuzz_seconds=300
        timeout_factor=10
        ;;
    --no-install) setup_flags+=(--no-install) ;;
    --only)
        [ $# -gt 1 ] || { echo "run: --only needs a part: gcc, asan, tsan, fuzz, tidy or format" >&2; exit 2; }
        case $2 in
        gcc | asan | tsan | fuzz | tidy | format) only+=("$2") ;;
        *) echo "run: no part $2: gcc, asan, tsan, fuzz, tidy or format" >&2; exit 2 ;;
        esac
        shift
        ;;
    -h | --help)
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' tests/run.sh
        exit 0
        ;;
    *)
        echo "run: unknown option $1 (--long, --no-install, --only PART, --help)" >&2
        exit 2
        ;;
    esac
    shift
done

wanted() { [ ${#only[@]} -eq 0 ] || [[ " ${only[*]} " == *" $1 "* ]]; }

builds=("$root/build" "$root/build-asan" "$root/build-tsan")
bash tests/setup.sh "${setup_flags[@]}" "${builds[@]}"
[ ! -d "$root/build/venv/bin" ] || PATH=$root/build/venv/bin:$PATH

# What every part of this run adds to: counts, and a line for the summary.
passed=0 failed=0 skipped=0
summary=()
add() { # PART PASSED FAILED SKIPPED SECONDS
    passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
    summary+=("$(printf '%-14s %5d passed %4d failed %4d skipped %6d s' "$1" "$2" "$3" "$4" "$5")")
}

export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
# Without atexit_sleep_ms each of the many programs that tests start would sleep for a second at its exit.
export TSAN_OPTIONS=second_deadlock_stack=1:atexit_sleep_ms=20:suppressions=$root/tests/support/tsan.supp
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export LSAN_OPTIONS=suppressions=$root/tests/support/lsan.supp:print_suppressions=0
export HEADROOM_FUZZ_SECONDS=$fuzz_seconds

# Configures (once) and builds. A build that fails counts as one failure of its part.
ready=" "
build() { # CONFIG
    local dir=$root/build flags=() cc=gcc
    case $1 in
    asan) dir=$root/build-asan cc=clang flags=(-Db_sanitize=address,undefined -Db_lundef=false) ;;
    tsan) dir=$root/build-tsan cc=clang flags=(-Db_sanitize=thread -Db_lundef=false) ;;
    esac
    [[ $ready != *" $1 "* ]] || return 0
    if [ ! -f "$dir/build.ninja" ]; then
        CC=$cc meson setup "$dir" "${flags[@]}" >"$dir-setup.log" 2>&1 || { cat "$dir-setup.log"; return 1; }
        rm -f "$dir-setup.log"
    fi
    if ! ninja -C "$dir" all meson-test-prereq meson-benchmark-prereq >"$dir/build.log" 2>&1; then
        tail -n 60 "$dir/build.log"
        return 1
    fi
    grep -A3 'warning:' "$dir/build.log" || true
    ready+="$1 "
}

folder() { case $1 in gcc) echo "$root/build" ;; *) echo "$root/build-$1" ;; esac; }

# Runs meson's tests of a configuration: meson_part NAME CONFIG FACTOR ARGUMENT...
meson_part() {
    local name=$1 config=$2 factor=$3 started=$SECONDS dir counts
    shift 3
    dir=$(folder "$config")
    echo "== $name"
    if ! build "$config"; then
        add "$name" 0 1 0 $((SECONDS - started))
        return
    fi
    rm -f "$dir/meson-logs/testlog.json"
    meson test -C "$dir" --no-rebuild --print-errorlogs -t "$factor" "$@" || true
    if [ ! -s "$dir/meson-logs/testlog.json" ]; then
        echo "run: $name ran no test"
        add "$name" 0 1 0 $((SECONDS - started))
        return
    fi
    counts=$(python3 tests/support/tally.py "$dir/meson-logs/testlog.json")
    # shellcheck disable=SC2086
    add "$name" $counts $((SECONDS - started))
}

fuzz_part() { # CONFIG
    if build "$1" && meson test -C "$(folder "$1")" --no-rebuild --list --suite fuzz 2>/dev/null | grep -q .; then
        meson_part "fuzz $1" "$1" "$timeout_factor" --suite fuzz
    else
        echo "run: fuzz $1: not built"
        add "fuzz $1" 0 1 0 0
    fi
}

c_files() { find src hooks include examples tests -name '*.[ch]' 2>/dev/null | sort; }

format_part() {
    local started=$SECONDS bad=0 files
    echo "== format"
    mapfile -t files < <(c_files)
    clang-format --dry-run --Werror "${files[@]}" || bad=1
    add format $((1 - bad)) "$bad" 0 $((SECONDS - started))
}

tidy_part() {
    local started=$SECONDS bad=0
    echo "== tidy"
    if build asan; then
        python3 - "$root" build-asan/compile_commands.json <<'PY' | xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p build-asan 2>build-asan/tidy.err || bad=1
import json, os, sys
root, commands = sys.argv[1:]
files = {os.path.realpath(os.path.join(e["directory"], e["file"])) for e in json.load(open(commands))}
print("\n".join(sorted(f for f in files if f.startswith(root + "/") and "/build-asan/" not in f and f.endswith(".c"))))
PY
        # What clang-tidy itself complains about (a broken command line, a crash) is on stderr among its warning counts.
        grep -v 'warnings\? \(generated\|treated as errors\)' build-asan/tidy.err || true
    else
        bad=1
    fi
    add tidy $((1 - bad)) "$bad" 0 $((SECONDS - started))
}

# The sanitizers slow everything down; tests state their limits for the default build.
if wanted gcc; then meson_part gcc gcc "$timeout_factor" --no-suite fuzz; fi
if wanted asan; then meson_part asan asan $((timeout_factor * 4)) --no-suite fuzz; fi
if wanted tsan; then meson_part tsan tsan $((timeout_factor * 8)) --no-suite fuzz; fi
if wanted fuzz; then
    for config in gcc asan tsan; do fuzz_part "$config"; done
fi
if wanted tidy; then tidy_part; fi
if wanted format; then format_part; fi

echo
printf '%s\n' "${summary[@]}"
if [ "$skipped" -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ "$failed" -eq 0 ]
