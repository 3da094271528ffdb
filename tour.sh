#!/usr/bin/env bash
# A tour of Halite on this machine: three nodes share a real file; other processes read, move and protect it.
# Usage: ./tour.sh [FILE]     (default: the halite program itself)
# Builds what it needs, works in a temporary directory, and leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")"

# The release build takes minutes; cargo shows how far it is.
cargo build --release -p halite-cli
halite=${CARGO_TARGET_DIR:-$PWD/target}/release/halite
file=${1:-$halite}
work=$(mktemp -d)
export HALITE_DIR=$work/cluster
trap '"$halite" down >/dev/null 2>&1 || true; rm -rf "$work"' EXIT

run() {
    printf '\n$ halite %s\n' "$*"
    "$halite" "$@"
}

same() {
    cmp "$file" "$1"
    printf '  ... byte for byte the same as %s\n' "$file"
}

run up --nodes 3 --detach
run put dataset "$file" --node 1
run get dataset -o "$work/copy"
same "$work/copy"
run mv dataset --to 2
run get dataset -o "$work/copy-after-move"
same "$work/copy-after-move"
run grant dataset everyone r
run ls
run stat dataset
run status
run perf write_lat -s 8 -n 100000
run perf read_bw -s 1M -n 2000
run rm dataset
run down
