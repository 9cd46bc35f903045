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
# shellcheck source=scripts/private-apt.sh
source "$(dirname "$0")/private-apt.sh"

fail() {
  echo "install-criu: $*" >&2
  exit 1
}

check_tools() {
  local tool
  for tool in apt-get dpkg-deb patchelf; do
    command -v "$tool" >/dev/null || fail "$tool is needed and not installed; run scripts/setup-packages.sh first"
  done
  [[ -r $keyring ]] || fail "$keyring is missing; install the package debian-archive-keyring"
  ((EUID == 0)) || fail "must be run as root, to write $prefix"
}

no_mirror() {
  cat >&2 <<TEXT
install-criu: apt on this machine has no Debian mirror, so Debian's CRIU cannot be fetched. What you can do instead:
  - Ubuntu: add the CRIU project's archive and install from it: add-apt-repository ppa:criu/ppa && apt-get install criu
  - name a Debian mirror: GODWIT_DEBIAN_MIRROR=ADDRESS make setup   (needs the package debian-archive-keyring)
  - build CRIU 4.2 or later from source and point GODWIT_CRIU at it, or put it into $prefix/bin
Then run: godwit doctor
TEXT
  exit 1
}

fetch() { # WORK: packages unpacked in WORK/root
  local archive work=$1
  export APT_CONFIG=$work/apt.conf
  update_index "$work"
  apt-get install -qq -y --download-only -o Debug::NoLocking=true "${programs[@]}" >/dev/null
  mkdir "$work/root"
  for archive in "$work"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$archive" | tar --extract --directory "$work/root" --exclude './usr/share'
  done
  unset APT_CONFIG
}

find_program() { # WORK NAME
  find "$1/root" -path "*/bin/$2" -o -path "*/sbin/$2" | head -n 1
}

find_library() { # WORK NAME
  find "$1/root" -name "$2" ! -type d | head -n 1
}

# Copies a program's or library's libraries, and theirs, into WORK/lib. Reads what is written in the files instead of
# running the loader, so it works for another architecture too.
collect_libraries() { # WORK FILE
  local work=$1 name path
  for name in $(patchelf --print-needed "$2"); do
    [[ ! -e $work/lib/$name ]] || continue
    path=$(find_library "$work" "$name")
    [[ -n $path ]] || fail "library $name, needed by $2, is in none of the packages"
    cp --dereference "$path" "$work/lib/$name"
    collect_libraries "$work" "$work/lib/$name"
  done
}

assemble() { # WORK: programs in WORK/bin, libraries in WORK/lib
  local work=$1 name path loader
  mkdir "$work/bin" "$work/lib"
  for name in "${programs[@]}"; do
    path=$(find_program "$work" "$name")
    [[ -n $path ]] || fail "program $name is in none of the packages"
    cp "$path" "$work/bin/$name"
    # A static program has no interpreter and needs nothing.
    loader=$(patchelf --print-interpreter "$path" 2>/dev/null) || continue
    collect_libraries "$work" "$path"
    cp --dereference "$(find_library "$work" "${loader##*/}")" "$work/lib/${loader##*/}"
    patchelf --set-interpreter "$prefix/lib/${loader##*/}" --force-rpath --set-rpath "$prefix/lib" "$work/bin/$name"
  done
  chmod -R u+w,a+rX "$work/bin" "$work/lib"
}

# Each file is replaced by a rename: programs that run keep the file that they have.
put_in_place() { # WORK
  local work=$1 directory file
  for directory in lib bin; do
    mkdir -p "$prefix/$directory"
    for file in "$work/$directory"/*; do
      cp "$file" "$prefix/$directory/.new"
      mv -f "$prefix/$directory/.new" "$prefix/$directory/${file##*/}"
    done
  done
  (cd "$work/cache/archives" && printf '%s\n' criu_*.deb runc_*.deb) >"$prefix/VERSION"
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
  fetch "$work"
  assemble "$work"
  put_in_place "$work"
  echo "install-criu: installed under $prefix: $(tr '\n' ' ' <"$prefix/VERSION")"
}

main
