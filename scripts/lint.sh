#!/usr/bin/env bash
# Formatting, golangci-lint (rules and their reasons: .golangci.yml) and shellcheck. The linter's version is pinned; it is
# built once from its Go module, which takes minutes, and kept in the user's cache.
set -euo pipefail
cd "$(dirname "$0")/.."
version=v2.15.0
tools=${GODWIT_TOOLS:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/godwit}/golangci-lint-$version

if [[ ! -x $tools/golangci-lint ]]; then
  echo "lint: building golangci-lint $version, once; this takes a few minutes"
  mkdir -p "$tools"
  GOBIN=$tools GOFLAGS='' nice go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$version"
fi

shellcheck scripts/*.sh .ci/run
"$tools/golangci-lint" run --timeout 10m "${@:-./...}"
# The services' tests are a module of their own, which requires newer versions whenever the main module does.
go vet -C test/services ./...
echo "lint: nothing to complain about"
