#!/usr/bin/env bash
# Runs every fuzz test of the repository, one after the other. Inputs that fail are left in the package's testdata/fuzz,
# where they become part of its tests.
#
#   fuzz.sh [TIME [SECONDS]]    TIME for each fuzz test; default 10s
#
# With SECONDS no further test is begun after that time. Each commit begins with other tests, so that all have their turn.
set -euo pipefail
cd "$(dirname "$0")/.."
fuzztime=${1:-10s} seconds=${2:-}
ran=0
failed=()

mapfile -t all < <(
  find cmd internal -name '*_test.go' -print0 | sort --zero-terminated |
    xargs -0 --no-run-if-empty grep -oE --with-filename '^func Fuzz[A-Za-z0-9_]*' | sed 's/:func /:/'
)

found=${#all[@]} first=0
if [[ -n $seconds ]]; then
  # Commits in a row begin far from each other, in other packages.
  first=$(($(git rev-list --count HEAD) * 29 % found))
fi
for ((i = 0; i < found; i++)); do
  if [[ -n $seconds ]] && ((SECONDS >= seconds)); then
    break
  fi
  IFS=: read -r file name <<<"${all[(first + i) % found]}"
  package=./$(dirname "$file")
  echo "fuzz: $package $name"
  ran=$((ran + 1))
  go test -run '^$' -fuzz "^$name\$" -fuzztime "$fuzztime" -fuzzminimizetime 1x "$package" </dev/null || failed+=("$package $name")
done

echo
echo "fuzz: $ran of $found fuzz tests, ${#failed[@]} failed"
if ((${#failed[@]} > 0)); then
  printf 'fuzz:   %s\n' "${failed[@]}"
  exit 1
fi
