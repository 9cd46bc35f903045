#!/usr/bin/env bash
# Makes sure that this machine has a CRIU and a runc that can checkpoint and restore a container with an open connection.
# A real trial decides (godwit doctor --trial), not version numbers: what is there is kept if it works, otherwise newer
# ones are installed beside the system's (install-criu.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
godwit=${GODWIT:-build/godwit}
prefix=/opt/godwit # where every part of Godwit looks

mkdir -p build
log=build/doctor.log

# Ends the script if the trial passes.
done_if_it_works() {
  if "$godwit" doctor --trial >"$log" 2>&1; then
    echo "setup: criu, runc: the trial passed"
    exit 0
  fi
}

# Debian's own CRIU is too old for the kernels that Godwit is made for. Ubuntu has none, unless the user has added an
# archive that has it: then that one is to be used.
other_distribution_has_criu() {
  local candidate
  # shellcheck source=/dev/null
  [[ $(. /etc/os-release && echo "${ID:-}") != debian ]] || return 1
  ! command -v criu >/dev/null || return 1
  candidate=$(apt-cache policy criu 2>/dev/null | awk '$1 == "Candidate:" { print $2 }')
  [[ -n $candidate && $candidate != "(none)" ]]
}

if ((EUID != 0)); then
  echo "setup: checkpoint and restore need root; run make setup as root" >&2
  exit 1
fi
done_if_it_works
if [[ -n ${GODWIT_CRIU:-}${GODWIT_RUNC:-} ]]; then
  cat "$log" >&2
  echo "setup: GODWIT_CRIU or GODWIT_RUNC is set, and what it names does not work; unset it to have another installed" >&2
  exit 1
fi
if other_distribution_has_criu; then
  echo "setup: criu: installing the package criu"
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends criu >/dev/null
  done_if_it_works
fi
echo "setup: criu, runc: what is installed cannot move a container on this machine; installing newer ones under $prefix"
scripts/install-criu.sh "$prefix"
done_if_it_works
cat "$log" >&2
exit 1
