# Sourced by the examples that run jobs of other makers: options, set-up, build. Leaves the other options in `rest`.
example=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
setup_flags=()
rest=()
for arg in "$@"; do
    case $arg in
    --no-install) setup_flags+=("$arg") ;;
    -h | --help)
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$example"
        exit 0
        ;;
    *) rest+=("$arg") ;;
    esac
done
bash tests/setup.sh --build-only --jobs "${setup_flags[@]}" "$PWD/build"
[ ! -d build/venv/bin ] || PATH=$PWD/build/venv/bin:$PATH
[ -f build/build.ninja ] || meson setup build >build-setup.log 2>&1 || {
    cat build-setup.log
    echo "$(basename "$example"): FAILED: meson setup" >&2
    exit 1
}
rm -f build-setup.log
ninja -C build headroom libheadroom.so simgpu-link.stamp | tail -n 1
