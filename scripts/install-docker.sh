#!/usr/bin/env bash
# Installs the Docker of another Debian suite than the system's under a prefix of its own, for tests: a lab starts it in place of
# the system's if GODWIT_LAB_DOCKER names the prefix.
#
#   install-docker.sh PREFIX
#
#   GODWIT_DEBIAN_SUITE    default trixie, which has Docker 26.1
#   GODWIT_DEBIAN_MIRROR, GODWIT_ARCH   as for install-criu.sh
set -euo pipefail
prefix=${1:?"usage: install-docker.sh PREFIX"}
suite=${GODWIT_DEBIAN_SUITE:-trixie}
architecture=${GODWIT_ARCH:-$(dpkg --print-architecture)}
programs=(dockerd docker containerd containerd-shim-runc-v2 docker-proxy)
packages=(docker.io docker-cli containerd)
# shellcheck source=scripts/private-apt.sh
source "$(dirname "$0")/private-apt.sh"
# shellcheck source=scripts/private-programs.sh
source "$(dirname "$0")/private-programs.sh"

main() {
  local source
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
  echo "install-docker: installed under $prefix: $(tr '\n' ' ' <"$prefix/VERSION")"
}

main
