#!/usr/bin/env bash
# Runs all Go tests. Packages run one after the other: many of them make network namespaces, cgroups and containers, and
# measure. Nothing is taken from the test cache, because what is tested is this machine's kernel and CRIU too.
#
#   test.sh [--long] [PACKAGE...]        default: all packages
#
# Without --long the lists of faults are thinned out, and what is random is tried less often.
set -euo pipefail
cd "$(dirname "$0")/.."

if ((EUID != 0)); then
  echo "test: the tests make containers, namespaces and cgroups; run them as root" >&2
  exit 1
fi
limit=25m package_limit=10m length=(-short)
if [[ ${1:-} == --long ]]; then
  limit=2h package_limit=90m length=()
  shift
fi
packages=("${@:-./...}")
mkdir -p build
log=build/test.log

# Compile everything first, on all cores.
go vet "${packages[@]}"

start=$SECONDS
status=0
timeout --foreground "$limit" go test -count=1 -p 1 -timeout "$package_limit" "${length[@]}" "${packages[@]}" </dev/null 2>&1 | tee "$log" || status=$?

count() { # PATTERN
  grep --count -E "$1" "$log" || true
}
echo
echo "test: $(count '^ok ') packages passed, $(count '^FAIL[[:space:]]+[^[:space:]]') failed, $(count 'no test files') without tests, in $((SECONDS - start)) s (log: $log)"
if ((status != 0)); then
  grep -E '^(--- FAIL|FAIL[[:space:]]+[^[:space:]]|panic:)' "$log" | sed 's/^/test:   /' || true
  ((status != 124)) || echo "test:   stopped: the tests took longer than $limit"
  echo "test: FAILED"
  exit 1
fi
echo "test: all passed"
