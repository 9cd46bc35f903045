#!/usr/bin/env bash
# Installs a newer CRIU and runc than the system's under a prefix of their own, with their own loader and libraries, and
# leaves the system's packages alone.
#
#   install-criu.sh [PREFIX]          default /opt/godwit
#
# Why: the CRIU of Debian 12 (3.17) and of Debian 13 (4.1) fails on newer kernels; 4.2 of a later Debian suite works on
# them, but needs a newer C library than the system has. apt does the resolving, the download and the check of signatures,
# in a private state directory; patchelf makes the programs use the loader and the libraries beside them.
#
# The Debian mirror is the one in apt's own configuration. Elsewhere than on Debian it must be given:
#   GODWIT_DEBIAN_MIRROR   address of a Debian mirror, as it would stand in sources.list
#   GODWIT_DEBIAN_SUITE    default forky
#   GODWIT_ARCH            default the machine's (dpkg --print-architecture)
set -euo pipefail
prefix=${1:-/opt/godwit}
suite=${GODWIT_DEBIAN_SUITE:-forky}
architecture=${GODWIT_ARCH:-$(dpkg --print-architecture)}
programs=(criu runc)
packages=("${programs[@]}")
# shellcheck source=scripts/private-apt.sh
source "$(dirname "$0")/private-apt.sh"
# shellcheck source=scripts/private-programs.sh
source "$(dirname "$0")/private-programs.sh"

no_mirror() {
  cat >&2 <<TEXT
install-criu: apt on this machine has no Debian mirror, so Debian's CRIU cannot be fetched. What you can do instead:
  - Ubuntu: add the CRIU project's archive and install from it: add-apt-repository ppa:criu/ppa && apt-get install criu
  - name a Debian mirror: GODWIT_DEBIAN_MIRROR=ADDRESS godwit setup criu   (needs the package debian-archive-keyring)
  - build CRIU 4.2 or later from source and point GODWIT_CRIU at it, or put it into $prefix/bin
Then run: godwit doctor
TEXT
  exit 1
}

main() {
  local source
  check_tools
  source=$(mirror)
  [[ -n $source ]] || no_mirror
  work=$(mktemp --directory)
  trap 'rm -rf "$work"' EXIT
  chmod 755 "$work"
  write_apt_configuration "$work" "$source" "$suite" "$architecture"
  echo "install-criu: fetching ${packages[*]} of $suite ($architecture) from $source"
  fetch "$work"
  echo "install-criu: assembling"
  assemble "$work"
  put_in_place "$work"
  echo "install-criu: installed under $prefix: $(tr '\n' ' ' <"$prefix/VERSION")"
}

main
