#!/bin/sh
# Installs the outside programs the widest tests and the benchmarks talk with. Needs root on Debian.
set -eu
cd "$(dirname "$0")/.."

# Programs of Debian, and the package each is in; then what npm has, by the lock in tests/npm.
programs='chromium curl ip memcached memccapable memcslap node npm redis-server redis-cli redis-benchmark etcd diodcat'
packages=''
for program in $programs; do
    command -v "$program" >/dev/null && continue
    case $program in
        memccapable | memcslap) packages="$packages libmemcached-tools" ;;
        etcd) packages="$packages etcd-server" ;;
        ip) packages="$packages iproute2" ;;
        node) packages="$packages nodejs" ;;
        diodcat) packages="$packages diod" ;;
        redis-cli | redis-benchmark) packages="$packages redis-tools" ;;
        *) packages="$packages $program" ;;
    esac
done
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || packages="$packages postgresql"
[ -e /usr/share/java/zookeeper.jar ] || packages="$packages zookeeper"
[ -e /usr/share/java/postgresql.jar ] || packages="$packages libpostgresql-jdbc-java"
if [ -n "$packages" ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "test tools: missing. As root on Debian: apt-get install$packages" >&2
        exit 1
    fi
    echo "test tools: installing$packages"
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 # run level 1: no service is started
    apt-get update -q
    # shellcheck disable=SC2086  # a list of words
    apt-get install -q -y --no-install-recommends $packages
fi

installed=tests/npm/node_modules/.package-lock.json
if [ -z "$(find $installed -newer tests/npm/package-lock.json 2>/dev/null)" ]; then
    echo "test tools: installing the peers of tests/npm"
    (cd tests/npm && npm ci --ignore-scripts)
    touch $installed
fi
echo "test tools: all there ($programs, PostgreSQL, ZooKeeper, tests/npm)"
