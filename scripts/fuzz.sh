#!/usr/bin/env bash
# Runs every fuzz test of the repository, one after the other. Inputs that fail are left in the package's testdata/fuzz,
# where they become part of its tests.
#
#   fuzz.sh [TIME]              for each fuzz test; default 10s
set -euo pipefail
cd "$(dirname "$0")/.."
fuzztime=${1:-10s}
found=0
failed=()

while IFS=: read -r file name; do
  found=$((found + 1))
  package=./$(dirname "$file")
  echo "fuzz: $package $name"
  go test -run '^$' -fuzz "^$name\$" -fuzztime "$fuzztime" -fuzzminimizetime 1x "$package" </dev/null || failed+=("$package $name")
done < <(
  find cmd internal -name '*_test.go' -print0 | sort --zero-terminated |
    xargs -0 --no-run-if-empty grep -oE --with-filename '^func Fuzz[A-Za-z0-9_]*' | sed 's/:func /:/'
)

echo
echo "fuzz: $found fuzz tests, ${#failed[@]} failed"
if ((${#failed[@]} > 0)); then
  printf 'fuzz:   %s\n' "${failed[@]}"
  exit 1
fi
