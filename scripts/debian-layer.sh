#!/usr/bin/env bash
# Makes file systems of containers as a user's image has them: Debian packages, installed by apt and set up by their own
# scripts. Nothing is installed on the machine, and nothing stays mounted.
#
#   debian-layer.sh base DIRECTORY [PACKAGE...]               a minimal Debian in a new directory
#   debian-layer.sh add BASE DIRECTORY [PACKAGE...] <SCRIPT   what the packages and then the script add to BASE, in a new
#                                                             directory, as overlayfs keeps an upper directory
#
#   GODWIT_DEBIAN_SUITE    default bookworm
#   GODWIT_DEBIAN_MIRROR   address of a Debian mirror; default: the one of apt's own configuration
set -euo pipefail
# shellcheck source=scripts/private-apt.sh
source "$(dirname "$0")/private-apt.sh"
suite=${GODWIT_DEBIAN_SUITE:-bookworm}

# Runs a script in a file system, with the machine's devices, and all else of its own; if NET is empty with the machine's network.
enter() { # ROOT NET SCRIPT [ARGUMENT...]
  local root=$1 net=$2 script=$3
  shift 3
  # shellcheck disable=SC2016,SC2086 # the inner shell expands them; empty is no option
  unshare --mount --pid --ipc --uts $net --fork --kill-child sh -euc '
    root=$1 script=$2
    shift 2
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --bind "$root.lists" "$root/var/lib/apt/lists"
    mount -t tmpfs tmpfs "$root/var/cache/apt"
    mount --bind "$(readlink -f /etc/resolv.conf)" "$root/etc/resolv.conf"
    hostname builder
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 TMPDIR=/tmp \
      DEBIAN_FRONTEND=noninteractive exec chroot "$root" sh -euc "$script" script "$@"
  ' enter "$root" "$script" "$@"
}

# shellcheck disable=SC2016 # for the shell in the new file system
install_packages='
  [ $# -gt 0 ] || exit 0
  apt-get install -qq --no-install-recommends "$@" >/dev/null 2>&1 || {
    apt-get update -qq
    apt-get install -qq --no-install-recommends "$@" >/dev/null
  }
'

bootstrap() {
  rm -rf "$work/root"
  DEBOOTSTRAP_DIR=$work/debootstrap/usr/share/debootstrap "$work/debootstrap/usr/sbin/debootstrap" \
    --variant=minbase --keyring="$keyring" "$suite" "$work/root" "$address" >"$work/log" 2>&1
}

base() { # DIRECTORY [PACKAGE...]
  local directory=$1
  shift
  (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root debootstrap && dpkg-deb --extract debootstrap_*.deb debootstrap)
  bootstrap || bootstrap || { tail -n 5 "$work/log" >&2; exit 1; } # it does not try again itself when a download breaks off
  printf '#!/bin/sh\nexit 101\n' >"$work/root/usr/sbin/policy-rc.d" # nothing is started while it is installed
  chmod 755 "$work/root/usr/sbin/policy-rc.d"
  printf '%s\n' force-unsafe-io path-exclude=/usr/share/{doc,man,info,locale,lintian}/'*' >"$work/root/etc/dpkg/dpkg.cfg.d/container"
  printf 'Acquire::%s;\n' 'Check-Valid-Until "false"' 'Languages "none"' 'Retries "2"' >"$work/root/etc/apt/apt.conf.d/90container"
  enter "$work/root" "" "$install_packages" "$@"
  rm -rf "$work"/root/{var/cache/apt/*,var/lib/apt/lists/*,usr/share/{doc,man,info,locale,lintian},var/log/*log}
  mkdir -p "$work"/root/usr/share/man/man1 # alternatives want the directory
  : >"$work/root/etc/resolv.conf"
  mkdir -p "$(dirname "$directory")"
  mv "$work/root" "$directory"
}

add() { # BASE DIRECTORY [PACKAGE...]
  local below=$1 directory=$2 setup
  shift 2
  setup=$(cat)
  mkdir "$work"/{upper,work,root}
  # shellcheck disable=SC2016
  unshare --mount --propagation private bash -euo pipefail -c '
    mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work,redirect_dir=off,metacopy=off,index=off" overlay "$2/root"
    shift 2
    "$@"
  ' add "$below" "$work" "$0" inside "$work/root" "$setup" "$@"
  rm -rf "$work/upper/etc/resolv.conf" "$work"/upper/var/log/{apt,dpkg.log,alternatives.log} "$work/upper/tmp"
  mv "$work/upper" "$directory"
}

# inside ROOT SETUP [PACKAGE...] is add, where ROOT is mounted.
inside() {
  local root=$1 setup=$2
  shift 2
  enter "$root" "" "$install_packages" "$@"
  enter "$root" --net "$setup"
}

command=$1
shift
if [[ $command == inside ]]; then
  inside "$@"
  exit
fi
address=$(mirror)
[[ -n $address ]] || { echo "debian-layer: apt on this machine has no Debian mirror; set GODWIT_DEBIAN_MIRROR" >&2; exit 1; }
case $command in base) target=$1 ;; *) target=$2 ;; esac
work=$(mktemp --directory "$(dirname "$target")/.making-XXXXXX") # beside the result, so that it can be renamed
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
# What apt knows of the mirror is kept beside the result, so that it is fetched once; it is fetched again when it is too old.
mkdir -p "$(dirname "$target")/apt-lists"
ln -s ../apt-lists "$work/root.lists"
"$command" "$@"
