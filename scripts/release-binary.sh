#!/usr/bin/env bash
# Builds the godwit of a release from the history of this repository, once, and prints where the binary is.
#
#   release-binary.sh [NAME]        default: the newest that RELEASES lists
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1:-$(awk '!/^#/ && NF == 2 { last = $1 } END { print last }' RELEASES)}
commit=$(awk -v name="$name" '!/^#/ && $1 == name { print $2 }' RELEASES)
if [[ -z $commit ]]; then
  echo "release-binary: RELEASES does not list ${name:-any release}" >&2
  exit 1
fi
if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
  git fetch --quiet --unshallow >&2 || true # a shallow clone has not the whole history
fi
if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
  echo "release-binary: commit $commit of $name is not in this clone; clone the whole history" >&2
  exit 1
fi

cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/godwit/releases
binary=$cache/$name-$commit/godwit
if [[ ! -x $binary ]]; then
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/build.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  git archive "$commit" | tar -x -C "$work"
  mkdir "$work/built"
  (cd "$work" && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${name#v}" \
    -o built/godwit ./cmd/godwit) >&2
  # Another build of the same may have been quicker; either is as good.
  mv -T "$work/built" "$cache/$name-$commit" 2>/dev/null || [[ -x $binary ]]
fi
echo "$binary"
