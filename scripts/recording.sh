#!/usr/bin/env bash
# Records the session that the README shows: a Redis moves to another node of a lab while a client counts. What is shown
# is a real run. Leaves docs/recording.cast (asciicast, version 2) and docs/recording.svg. Needs root and build/godwit-lab.
#
# termtosvg (pinned, BSD) draws it. It is installed once, into the user's cache.
set -euo pipefail
cd "$(dirname "$0")/.."
version=1.1.0
tools=${GODWIT_TOOLS:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/godwit}/termtosvg-$version
columns=100 rows=36

PATH=$PWD/build:$PATH
name=recording address=10.88.1.2 # of the first container of a lab

# on PROMPT NODE COMMAND... shows a command as somebody types it at a node, and runs it there.
on() {
  local node=$1 i text
  shift
  text=$*
  printf '\e[1;32m%s#\e[0m ' "$node"
  sleep 0.6
  for ((i = 0; i < ${#text}; i++)); do
    printf %s "${text:i:1}"
    sleep 0.03
  done
  sleep 0.3
  printf '\n'
  godwit-lab exec --name "$name" "$node" -- sh -c "$text"
}

session() {
  on a 'godwit ps'
  on client "redis-cli -h $address -r 160 -i 0.05 incr visits >/tmp/answers 2>&1 &"
  on a 'godwit migrate cache b'
  on b 'godwit ps'
  on client 'while pgrep -x redis-cli >/dev/null; do sleep 0.1; done; tail -n 1 /tmp/answers; wc -l </tmp/answers'
  sleep 2
}

if [[ ${1:-} == session ]]; then
  session
  exit
fi

if [[ ! -x $tools/bin/termtosvg ]]; then
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet "termtosvg==$version" setuptools
fi
trap 'godwit-lab down --name "$name"' EXIT
godwit-lab up --name "$name" --bandwidth 100mbit --rtt 20ms
godwit-lab exec --name "$name" a -- godwit image load "$(godwit-lab image redis)"
godwit-lab exec --name "$name" a -- godwit run -d --name cache redis
godwit-lab client --name "$name" a
scripts/record.py "$columns" "$rows" docs/recording.cast scripts/recording.sh session
"$tools/bin/termtosvg" render docs/recording.cast docs/recording.svg -t gjm8
echo "recording: docs/recording.cast, docs/recording.svg"
