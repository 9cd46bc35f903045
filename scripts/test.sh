#!/usr/bin/env bash
# Runs all Go tests. Packages run one after the other: many of them make network namespaces, cgroups and containers, and
# measure. Nothing is taken from the test cache, because what is tested is this machine's kernel and CRIU too.
#
#   test.sh [PACKAGE...]        default: all
set -euo pipefail
cd "$(dirname "$0")/.."

if ((EUID != 0)); then
  echo "test: the tests make containers, namespaces and cgroups; run them as root" >&2
  exit 1
fi
packages=("${@:-./...}")
mkdir -p build
log=build/test.log

# Compile everything first, on all cores.
go vet "${packages[@]}"

start=$SECONDS
status=0
timeout --foreground 19m go test -count=1 -p 1 -timeout 10m "${packages[@]}" </dev/null 2>&1 | tee "$log" || status=$?

count() { # PATTERN
  grep --count -E "$1" "$log" || true
}
echo
echo "test: $(count '^ok ') packages passed, $(count '^FAIL[[:space:]]+[^[:space:]]') failed, $(count 'no test files') without tests, in $((SECONDS - start)) s (log: $log)"
if ((status != 0)); then
  grep -E '^(--- FAIL|FAIL[[:space:]]+[^[:space:]]|panic:)' "$log" | sed 's/^/test:   /' || true
  ((status != 124)) || echo "test:   stopped: the tests took longer than 19 minutes"
  echo "test: FAILED"
  exit 1
fi
echo "test: all passed"
