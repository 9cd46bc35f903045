#!/usr/bin/env bash
# Installs a container engine of another Debian suite than the system's under a prefix of its own, for tests: the nodes of a lab use it
# in the place of the system's if GODWIT_LAB_ENGINES names the prefix.
#
#   install-engine.sh docker|podman|containerd|lxc PREFIX [SUITE]
#
#   SUITE   default trixie, which has Docker 26.1, Podman 5.4, containerd 1.7 and LXC 6.0; sid has newer ones
#   GODWIT_DEBIAN_MIRROR, GODWIT_ARCH   as for install-criu.sh
set -euo pipefail
engine=${1:-} prefix=${2:-} suite=${3:-trixie}
architecture=${GODWIT_ARCH:-$(dpkg --print-architecture)}
# shellcheck source=scripts/private-apt.sh
source "$(dirname "$0")/private-apt.sh"
# shellcheck source=scripts/private-programs.sh
source "$(dirname "$0")/private-programs.sh"

# What belongs to an engine: its programs, and the packages that have them.
name_parts() {
  case $engine in
    docker)
      programs=(dockerd docker containerd containerd-shim-runc-v2 docker-proxy ctr runc)
      packages=(docker.io docker-cli containerd runc)
      ;;
    podman)
      programs=(podman conmon netavark aardvark-dns crun runc)
      packages=(podman conmon netavark aardvark-dns crun runc)
      ;;
    containerd)
      programs=(containerd containerd-shim-runc-v2 ctr runc)
      packages=(containerd runc)
      ;;
    lxc)
      programs=(lxc-attach lxc-autostart lxc-checkpoint lxc-config lxc-create lxc-destroy lxc-freeze lxc-info lxc-ls lxc-start lxc-stop lxc-unfreeze)
      packages=(lxc liblxc-common liblxc1t64)
      data=(usr/share/lxc)
      ;;
    *)
      fail "usage: install-engine.sh docker|podman|containerd|lxc PREFIX [SUITE]"
      ;;
  esac
  [[ -n $prefix ]] || fail "say under which prefix $engine is to be installed"
}

main() {
  local source
  name_parts
  check_tools
  source=$(mirror)
  [[ -n $source ]] || fail "apt on this machine has no Debian mirror: name one with GODWIT_DEBIAN_MIRROR=ADDRESS"
  work=$(mktemp --directory)
  trap 'rm -rf "$work"' EXIT
  chmod 755 "$work"
  write_apt_configuration "$work" "$source" "$suite" "$architecture"
  fetch "$work"
  assemble "$work"
  put_in_place "$work"
  echo "install-engine: installed under $prefix: $(tr '\n' ' ' <"$prefix/VERSION")"
}

main
