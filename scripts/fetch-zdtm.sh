#!/usr/bin/env bash
# Fetches the source of Debian's CRIU, builds the programs of its test suite zdtm, and makes a root file system with them
# and the libraries that they need, for `make zdtm`.
#
#   fetch-zdtm.sh PREFIX
#
#   PREFIX/root     the root file system: programs in /zdtm/static and /zdtm/transition
#   PREFIX/tests    a line for each program: its path below /zdtm, and its arguments
#   PREFIX/VERSION  the version of CRIU, written last
#
# The suite is GPL-2.0: it is built and run, and never becomes a part of this repository. A program that needs a
# library whose header files are not installed (libaio-dev, libcap-dev, libnl-route-3-dev) is left out.
#
#   GODWIT_DEBIAN_MIRROR, GODWIT_DEBIAN_SUITE   as for install-criu.sh
set -euo pipefail
prefix=${1:?usage: fetch-zdtm.sh PREFIX}
suite=${GODWIT_DEBIAN_SUITE:-forky}
architecture=$(dpkg --print-architecture)
# shellcheck source=scripts/private-apt.sh
source "$(dirname "$0")/private-apt.sh"

fail() {
  echo "fetch-zdtm: $*" >&2
  exit 1
}

# The sources of the package as its authors have published them, in WORK/criu-VERSION: Debian's changes do not touch the
# tests. apt checks the signature.
fetch_source() { # WORK MIRROR
  write_apt_configuration "$1" "$2" "$suite" "$architecture"
  echo "deb-src [signed-by=$keyring] $2 $suite main" >>"$1/etc/sources.list"
  export APT_CONFIG=$1/apt.conf
  update_index "$1"
  (cd "$1" && apt-get source -qq --download-only --tar-only criu >/dev/null)
  unset APT_CONFIG
  tar --extract --directory "$1" --file "$(echo "$1"/criu_*.orig.tar.*)"
}

# make -k goes on after programs that cannot be built.
build() { # ZDTM LOG
  local part
  make -C "$1/lib" >"$2" 2>&1 || fail "cannot build the library of the tests: see $2"
  for part in static transition; do
    make -C "$1/$part" -k -j "$(nproc)" >>"$2" 2>&1 || true
  done
}

# The arguments of each program are in the suite's Makefiles: "./NAME --pidfile=... --outfile=...".
list() { # ZDTM
  local part
  for part in static transition; do
    (
      cd "$1/$part"
      find . -maxdepth 1 -type f -executable ! -name '*.so' -printf '%f.pid\n' | LC_ALL=C sort |
        xargs make -k -n --no-print-directory 2>/dev/null | sed -n "s|^\./\([^ ]* --pidfile\)|$part/\1|p"
    ) || true
  done
}

assemble() { # ZDTM ROOT TESTS
  local name library
  mkdir -p "$2"/{bin,dev,etc,proc,run,sys,tmp,var,zdtm/static,zdtm/transition}
  chmod 1777 "$2/tmp"
  cp /bin/busybox "$2/bin/busybox"
  ln -s busybox "$2/bin/sh"
  echo 'root:x:0:0:root:/root:/bin/sh' >"$2/etc/passwd"
  echo 'root:x:0:' >"$2/etc/group"
  while read -r name _; do
    cp "$1/$name" "$2/zdtm/$name"
    strip "$2/zdtm/$name" 2>/dev/null || true # one is a script
    ldd "$1/$name" 2>/dev/null || true
  done <"$3" | grep -o '/[^ ]*' | sort -u >"$2.libraries"
  realpath "$(gcc --print-file-name=libgcc_s.so.1)" >>"$2.libraries" # pthread_exit loads it
  while read -r library; do
    mkdir -p "$2${library%/*}"
    cp --dereference "$library" "$2$library"
  done <"$2.libraries"
  rm "$2.libraries"
}

main() {
  local source zdtm
  for tool in gcc make strip ldd /bin/busybox; do
    command -v "$tool" >/dev/null || fail "$tool is needed and not installed; run make setup first"
  done
  source=$(mirror)
  [[ -n $source ]] || fail "apt on this machine has no Debian mirror: name one with GODWIT_DEBIAN_MIRROR=ADDRESS"
  work=$(mktemp --directory)
  trap 'rm -rf "$work"' EXIT
  fetch_source "$work" "$source"
  zdtm=$(echo "$work"/criu-*/test/zdtm)
  build "$zdtm" "$work/build.log"
  rm -rf "$prefix"
  mkdir -p "$prefix"
  list "$zdtm" >"$prefix/tests"
  assemble "$zdtm" "$prefix/root" "$prefix/tests"
  basename "$(dirname "$(dirname "$zdtm")")" >"$prefix/VERSION"
  echo "fetch-zdtm: $(wc -l <"$prefix/tests") programs of $(<"$prefix/VERSION") are in $prefix"
}

main
