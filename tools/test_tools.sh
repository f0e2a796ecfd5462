#!/bin/sh
# Installs the outside programs the widest tests and the benchmarks talk with. Needs root on Debian.
set -eu

programs='memcached memccapable memcslap'
packages='memcached libmemcached-tools'

missing=''
for program in $programs; do
    command -v "$program" >/dev/null || missing="$missing $program"
done
if [ -z "$missing" ]; then
    echo "test tools: all there ($programs)"
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "test tools: missing:$missing. As root on Debian: apt-get install $packages" >&2
    exit 1
fi
echo "test tools: installing $packages"
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 # run level 1: no service is started
apt-get update -q
# shellcheck disable=SC2086  # a list of words
apt-get install -q -y --no-install-recommends $packages
