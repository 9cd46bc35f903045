#!/usr/bin/env bash
# Runs all Go tests. Two packages run at a time: most of what they do is to wait. Nothing is taken from the test cache, because
# what is tested is this machine's kernel and CRIU too.
#
#   test.sh [--long] [PACKAGE...]        default: all packages
#
# Without --long the lists of faults are thinned out, and what is random is tried less often. The last lines say what was slow and what
# failed: of a run elsewhere often nothing else can be seen. gotestsum (pinned) tells it; it is built once from its Go module, and kept
# in the user's cache.
set -euo pipefail
cd "$(dirname "$0")/.."
version=v1.13.0
tools=${GODWIT_TOOLS:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/godwit}/gotestsum-$version

if ((EUID != 0)); then
  echo "test: the tests make containers, namespaces and cgroups; run them as root" >&2
  exit 1
fi
# The suite takes less than 25 minutes on two quiet cores (CONTRIBUTING.md has the limits, too); a busy machine may take
# longer. A package that hangs is to say where, before the whole is stopped.
limit=45m package_limit=40m length=(-short)
if [[ ${1:-} == --long ]]; then
  limit=2h package_limit=90m length=()
  shift
fi
if [[ ! -x $tools/gotestsum ]]; then
  GOBIN=$tools GOFLAGS='' go install "gotest.tools/gotestsum@$version"
fi
packages=("${@:-./...}")
mkdir -p build
log=build/test.log events=build/test.json

# Compile everything first, on all cores.
go vet "${packages[@]}"

# What takes longest comes first, so that at the end not one package is left that all wait for.
if (($# == 0)); then
  packages=(./test/engines ./test/e2e ./test/faults ./internal/bench/... ./internal/engine/embedded "${packages[@]}")
fi

# summary is what is told of the tests that failed, or of why there are none.
summary='^(=== (Failed|Errors|Skipped)|DONE )'

# bounded leaves out the middle of what a test has said if it is long.
bounded() {
  awk -v most=60 '
    function tell(  i) {
      for (i = 1; i <= n; i++)
        if (n <= most || i <= most * 3 / 4 || i > n - most / 4) print substr(line[i], 1, 1000)
        else if (i == int(most * 3 / 4) + 1) print "    ... (" n - most " lines)"
      n = 0
    }
    /^(=== |DONE )/ { tell() }
    { line[++n] = $0 }
    END { tell() }'
}

start=$SECONDS
exec 3> >(tee "$log" | awk -v end="$summary" '$0 ~ end { told = 1 } !told { print; fflush() }')
teller=$!
# At the limit, or when this script is told to end, all processes of the tests are: they remove what they have made, and gotestsum counts
# those that were running as failed. It gets the signal twice, and would end by the second.
timeout --signal INT --kill-after 60 "$limit" env --ignore-signal=INT \
  "$tools/gotestsum" --format pkgname --format-icons text --format-hide-empty-pkg --jsonfile "$events" -- \
  -count=1 -p 2 -timeout "$package_limit" "${length[@]}" "${packages[@]}" </dev/null >&3 2>&1 3>&- &
tests=$!
exec 3>&-
trap 'kill -INT "$tests"' INT TERM
status=0
wait "$tests" || status=$?
wait "$tests" || status=$? # if it was a signal that ended the first
wait "$teller" || true

echo
echo "test: the slowest tests:"
"$tools/gotestsum" tool slowest --threshold 1s --jsonfile "$events" | awk '$2 !~ "/" && ++n <= 15' || true # subtests are within their tests
echo
awk -v end="$summary" '$0 ~ end { told = 1 } told' "$log" | bounded
echo "test: $((SECONDS - start)) s; all that was said: $events"
if ((status != 0)); then
  sed -n -E 's/^=== FAIL: ([^ ]+) (.*)$/test:   --- FAIL: \2, in \1/p' "$log" | sort -u
  ((status != 124)) || echo "test:   stopped: the tests took longer than $limit; what is called unknown was running"
  echo "test: FAILED"
  exit 1
fi
echo "test: all passed"
