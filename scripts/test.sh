#!/usr/bin/env bash
# Runs all Go tests. Two packages run at a time: most of what they do is to wait. Nothing is taken from the test cache, because
# what is tested is this machine's kernel and CRIU too.
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
# A package that hangs is to say where, before the whole is stopped.
limit=20m package_limit=9m length=(-short)
if [[ ${1:-} == --long ]]; then
  limit=2h package_limit=90m length=()
  shift
fi
packages=("${@:-./...}")
mkdir -p build

# Compile everything first, on all cores.
go vet "${packages[@]}"
go build -o build/suite ./scripts/suite

# What takes longest comes first, so that at the end not one package is left that all wait for.
longest=(./test/engines ./test/e2e ./test/faults ./internal/bench ./internal/engine/embedded)
if (($# == 0)); then
  packages=("${longest[@]}" "${packages[@]}")
fi
exec build/suite -limit "$limit" -log build/test.log -- \
  -count=1 -p 2 -timeout "$package_limit" "${length[@]}" "${packages[@]}"
