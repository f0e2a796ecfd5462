#!/bin/sh
# Builds the accelerator into the environment of PYTHON, unless STAMP says that it is there.
#
#   build_accelerator.sh PYTHON STAMP
#
# It is optional: without a C compiler or Python's headers one line says so, and all is well. Where
# skips are forbidden (`make ci`), so is going on without it.
set -eu
python=$1
stamp=$2
[ ! -e "$stamp" ] || exit 0

without() {
    echo "== $1: going on without the accelerator (everything works, GET and SET cost more)"
    [ "${MILLSTREAM_FORBID_SKIPS:-0}" != 1 ]
    exit
}

compiler=$("$python" -c 'import sysconfig; print((sysconfig.get_config_var("CC") or "cc").split()[0])')
include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
command -v "$compiler" >/dev/null || without "no C compiler ($compiler; on Debian: gcc)"
[ -e "$include/Python.h" ] || without "no $include/Python.h (on Debian: python3-dev)"

echo '== compiling the accelerator'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R accelerator "$work" # a build leaves files behind
if ! "$python" -m pip --disable-pip-version-check --no-input install --quiet --no-build-isolation \
    --no-deps --force-reinstall "$work/accelerator" >"$work/log" 2>&1; then
    cat "$work/log"
    without "it cannot be compiled here, see above"
fi
mkdir -p "$(dirname "$stamp")"
rm -f "$(dirname "$stamp")"/accelerator-*
touch "$stamp"
