#!/bin/sh
# Builds the programs of tests/sdks. Toolchains that are missing come from Debian (root), everything
# else from the registries of the languages, pinned with sums.
set -eu
cd "$(dirname "$0")/.."

packages=''
for program in go cargo javac mvn node npm; do
    command -v "$program" >/dev/null && continue
    case $program in
        go) packages="$packages golang" ;;
        javac) packages="$packages default-jdk-headless" ;;
        mvn) packages="$packages maven" ;;
        node) packages="$packages nodejs" ;;
        *) packages="$packages $program" ;;
    esac
done
if [ -n "$packages" ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "SDKs: missing. As root on Debian 13 or newer: apt-get install$packages" >&2
        exit 1
    fi
    echo "SDKs: installing$packages"
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    apt-get update -q
    # shellcheck disable=SC2086  # a list of words
    apt-get install -q -y --no-install-recommends $packages
fi
# "1.24" is not older than "1.9": versions are sorted as such.
at_least() {
    oldest=$(printf '%s\n' "$2" "$3" | sort -V | head -n 1)
    [ "$oldest" = "$2" ] && return
    echo "SDKs: $1 $3 is too old, $2 or newer is needed. Debian 12's golang and cargo are: install newer ones" >&2
    exit 1
}
at_least go 1.24 "$(go env GOVERSION | sed 's/^go//')"
at_least cargo 1.85 "$(cargo --version | cut -d ' ' -f 2)"
at_least javac 17 "$(javac -version 2>&1 | cut -d ' ' -f 2)"
at_least node 18 "$(node --version | sed 's/^v//')"
cd tests/sdks

echo "SDKs: Go"
(cd go && go build -o build/ ./...)

echo "SDKs: Java"
(
    cd java
    sha256sum --check --status jars.sha256 2>/dev/null || {
        rm -rf build/lib
        mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
            -DoutputDirectory=build/lib -DincludeScope=runtime
        sha256sum --check --quiet jars.sha256
    }
    javac -d build/classes -cp 'build/lib/*' Client.java
)

echo "SDKs: Node"
(
    cd node
    installed=node_modules/.package-lock.json
    if [ -z "$(find $installed -newer package-lock.json 2>/dev/null)" ]; then
        # Not `npm ci`: it refuses a lock without the package for Windows, which not all registries have.
        npm install --no-save --ignore-scripts
        touch $installed
    fi
)

echo "SDKs: Rust (the first time takes longest)"
(
    # Cargo.pins is Cargo.lock without the address of the registry, which cargo knows.
    cd rust
    registry=$(cargo metadata --no-deps --format-version 1 |
        sed 's/.*"source":"\(registry[^"]*\)".*/\1/')
    sed "s|^checksum = |source = \"$registry\"\n&|" Cargo.pins >build.lock
    cmp -s build.lock Cargo.lock || cp build.lock Cargo.lock
    rm build.lock
    cargo build --locked --quiet --target-dir build
)
