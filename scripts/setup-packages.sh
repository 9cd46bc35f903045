#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that building, testing and benchmarking Godwit needs. Asks apt for nothing that
# is there, so it needs no network when nothing is missing. Meant for Debian 12 and 13 and Ubuntu 24.04.
set -euo pipefail

# What each package is for:
packages=(
  runc           # runs and restores the containers
  nftables       # marks and counts packets in the lab
  iproute2       # ip and tc, in tests and for a person at a lab node
  iputils-ping   # round trips in the lab
  procps         # ps in tests of process trees
  ca-certificates # Go modules come over https
  git make       # version stamp, this build
  gcc libc6-dev  # workloads of the tests that are written in C
  busybox-static # the smallest root file system of the tests
  redis-server   # the demo's workload, packed into a lab image
  sshfs openssh-sftp-server # storage that both nodes mount, in tests
  rsync          # benchmark: checkpoint, copy, restore by hand
  docker.io      # tests: its containers move
  podman netavark conmon # benchmark: the way of Podman
  containernetworking-plugins # tests: networks of containerd's containers
  iptables       # benchmark: the CRIU that Podman starts locks connections by it
  lxc            # tests: containers of LXC
  e2fsprogs      # benchmark: an empty file system for each run
  openssh-client openssh-server # benchmark: rsync and podman by way of ssh
  patchelf       # gives CRIU its own loader and libraries (install-criu.sh)
  debian-archive-keyring # checks the signatures of what install-criu.sh fetches
  shellcheck     # make lint
)

# What other packages than these bring, Docker's own for example, stays: apt would remove one for the other.
declare -A brings=([runc]=runc [docker.io]=dockerd)

missing() {
  local package command
  for package in "${packages[@]}"; do
    command=${brings[$package]:-}
    [[ -n $command ]] && command -v "$command" >/dev/null && continue
    [[ $(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null || true) == installed ]] ||
      echo "$package"
  done
  command -v docker >/dev/null || echo docker-cli
}

# From Debian 13 and Ubuntu 25.04 on Docker's command line is a package of its own; before, apt knows none of that name.
known() { # PACKAGE...
  local package
  for package in "$@"; do
    [[ $package != docker-cli ]] || apt-cache show docker-cli >/dev/null 2>&1 || continue
    echo "$package"
  done
}

# Packages such as redis-server start a service when they are installed, unless this file says no (invoke-rc.d(8)).
policy=/usr/sbin/policy-rc.d
forbid_services() {
  [[ ! -e $policy ]] || return 0
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
}

units=(redis-server.service docker.service docker.socket containerd.service lxc.service lxc-net.service lxc-monitord.service
  ssh.service ssh.socket)

there() {
  local unit
  command -v systemctl >/dev/null || return 0
  for unit in "${units[@]}"; do
    ! systemctl cat "$unit" >/dev/null 2>&1 || echo "$unit"
  done
}

# What was installed quietly must not start at the next boot either; what was there before is not ours.
disable_services() { # UNIT... that were there before
  local unit
  while read -r unit; do
    [[ " $* " == *" $unit "* ]] || systemctl disable --quiet "$unit" 2>/dev/null || true
  done < <(there)
}

main() {
  command -v apt-get >/dev/null || {
    echo "setup: this machine has no apt-get; install by hand: ${packages[*]}" >&2
    exit 1
  }
  local wanted before
  mapfile -t wanted < <(missing)
  if ((${#wanted[@]} == 0)); then
    echo "setup: packages: all there"
    return
  fi
  if ((EUID != 0)); then
    echo "setup: packages missing: ${wanted[*]}; run make setup as root, or install them by hand" >&2
    exit 1
  fi
  echo "setup: packages: installing ${wanted[*]}"
  mapfile -t before < <(there)
  forbid_services
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  mapfile -t wanted < <(known "${wanted[@]}")
  apt-get install -qq -y --no-install-recommends --no-remove "${wanted[@]}" >/dev/null
  disable_services "${before[@]}"
}

main
