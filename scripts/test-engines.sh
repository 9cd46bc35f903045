#!/usr/bin/env bash
# Runs the tests of engines with other versions of them than the system's, which are fetched once, below ~/.cache/godwit
# (GODWIT_ENGINES for another place). test/engines/matrix.txt has the runs.
#
#   test-engines.sh [RUN...]        default: all runs but compatibility
#   test-engines.sh --list
#
# Goes on after a run that fails, and then exits with 1.
set -euo pipefail
cd "$(dirname "$0")/.."
matrix=test/engines/matrix.txt
cache=${GODWIT_ENGINES:-${HOME:-/root}/.cache/godwit}

rows() { grep -v '^#' "$matrix"; }

# provide ENGINE VERSION SUITE PREFIX installs what is not there yet.
provide() {
  if [[ $3 != module ]]; then
    [[ -e $4/VERSION ]] || scripts/install-engine.sh "$1" "$4" "$3"
  elif [[ ! -x $4/bin/nerdctl ]]; then # the module in test/nerdctl says with go.sum what is built
    mkdir -p "$4/bin"
    CGO_ENABLED=0 go build -C test/nerdctl -trimpath -o "$4/bin/nerdctl" \
      -ldflags "-s -w -X github.com/containerd/nerdctl/v2/pkg/version.Version=v$2" github.com/containerd/nerdctl/v2/cmd/nerdctl
  fi
}

if [[ ${1:-} == --list ]]; then
  rows | awk '{ print $1 }' | uniq
  exit
fi
for name in "$@"; do
  rows | awk -v name="$name" '$1 == name { found = 1 } END { exit !found }' || {
    echo "test-engines: no run is called $name; there are: $(rows | awk '{ print $1 }' | uniq | tr '\n' ' ')" >&2
    exit 2
  }
done

failed=()
while read -r run engine version suite nodes with tests; do
  if (($# == 0)); then
    [[ $run != compatibility ]] || continue
  elif [[ " $* " != *" $run "* ]]; then
    continue
  fi
  prefix=$cache/$engine-$version
  provide "$engine" "$version" "$suite" "$prefix"
  variable=GODWIT_LAB_ENGINES
  [[ $nodes == both ]] || variable=GODWIT_LAB_ENGINES_B
  [[ $with != - ]] || with=
  read -ra settings <<<"${with//,/ }"
  echo "test-engines: $run: $engine $version at ${nodes/both/both nodes}${with:+, $with}"
  env "$variable=$prefix" ${settings[@]+"${settings[@]}"} go test -count=1 -timeout 40m -run "$tests" -v ./test/engines </dev/null ||
    failed+=("$run: $engine $version${with:+, $with}")
done < <(rows)
if ((${#failed[@]})); then
  printf 'test-engines: FAILED: %s\n' "${failed[@]}" >&2
  exit 1
fi
echo "test-engines: passed"
