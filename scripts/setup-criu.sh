#!/usr/bin/env bash
# Makes sure that this machine has a CRIU and a runc that can checkpoint and restore a container with an open connection.
# A real trial decides (godwit doctor --trial), not version numbers: what is there is kept if it works, otherwise newer
# ones are installed beside the system's (install-criu.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
godwit=${GODWIT:-build/godwit}
prefix=${GODWIT_PREFIX:-/opt/godwit}

if ((EUID != 0)); then
  echo "setup: checkpoint and restore need root; run make setup as root" >&2
  exit 1
fi
if "$godwit" doctor --trial; then
  exit 0
fi
echo "setup: criu: what is installed cannot move a container on this machine; installing a newer one under $prefix"
scripts/install-criu.sh "$prefix"
exec "$godwit" doctor --trial
