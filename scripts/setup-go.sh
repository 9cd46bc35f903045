#!/usr/bin/env bash
# Makes sure that there is a Go toolchain as new as go.mod asks for. A Go that can fetch newer toolchains by itself (1.21
# and later) only has to be allowed to; for anything older the toolchain is fetched as the Go module that it is
# published as (golang.org/toolchain, checked against Go's checksum database) and put under /opt/godwit/go.
set -euo pipefail
prefix=/opt/godwit
cd "$(dirname "$0")/.."

wanted=$(awk '$1 == "go" { print $2 }' go.mod)
[[ $wanted == *.*.* ]] || wanted=$wanted.0

at_least() { # VERSION MINIMUM
  [[ $(printf '%s\n%s\n' "$1" "$2" | sort --version-sort | head -n 1) == "$2" ]]
}

version_of() { # GO: its version without "go", empty if it does not run
  "$1" env GOVERSION 2>/dev/null | sed 's/^go//; s/ .*//' || true
}

# Inside the repository a Go of 1.21 or later answers with the version that it would use for it.
good_enough() { # GO
  local version
  version=$(version_of "$1")
  [[ -n $version ]] && at_least "$version" "$wanted"
}

# The first Go that is good enough, or else one that can fetch a better one; nothing if there is none at all.
find_go() {
  local candidate other=""
  for candidate in "$(command -v go || true)" "$prefix/go/bin/go"; do
    [[ -x $candidate ]] || continue
    if good_enough "$candidate"; then
      echo "$candidate"
      return
    fi
    other=$candidate
  done
  echo "$other"
}

# Any Go that knows modules can fetch a toolchain, because a toolchain is published as a module. Modules are unpacked
# without permissions, hence the chmod.
fetch_toolchain() { # GO
  local go=$1 platform directory
  platform=$(GOTOOLCHAIN=local "$go" env GOOS)-$(GOTOOLCHAIN=local "$go" env GOARCH)
  temporary=$(mktemp -d)
  # Modules are unpacked read-only too.
  trap 'chmod -R u+w "$temporary"; rm -rf "$temporary"' EXIT
  echo "setup: go: fetching the toolchain $wanted for $platform"
  (
    cd "$temporary"
    GOTOOLCHAIN=local GOFLAGS=-mod=mod GOMODCACHE=$temporary/modules GO111MODULE=on \
      "$go" mod download "golang.org/toolchain@v0.0.1-go$wanted.$platform"
  )
  directory=$temporary/modules/golang.org/toolchain@v0.0.1-go$wanted.$platform
  mkdir -p "$prefix"
  rm -rf "$prefix/go.new"
  cp -r "$directory" "$prefix/go.new"
  chmod -R u+w,a+rX "$prefix/go.new"
  chmod -R a+x "$prefix/go.new/bin" "$prefix/go.new/pkg/tool"
  rm -rf "$prefix/go"
  mv "$prefix/go.new" "$prefix/go"
}

main() {
  local go
  go=$(find_go)
  if [[ -n $go ]] && good_enough "$go"; then
    echo "setup: go: $(version_of "$go") ($go)"
    return
  fi
  if ((EUID != 0)); then
    echo "setup: Go $wanted or later is needed and not found; install it, or run make setup as root" >&2
    exit 1
  fi
  if [[ -z $go ]]; then
    echo "setup: go: installing the distribution's Go, which fetches the one that is needed"
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends golang-go >/dev/null
    go=$(command -v go)
    if good_enough "$go"; then
      echo "setup: go: $(version_of "$go") ($go)"
      return
    fi
  fi
  fetch_toolchain "$go"
  good_enough "$prefix/go/bin/go" || {
    echo "setup: $prefix/go/bin/go does not work; install Go $wanted or later by hand and put it into PATH" >&2
    exit 1
  }
  echo "setup: go: $(version_of "$prefix/go/bin/go") ($prefix/go/bin/go)"
}

main
