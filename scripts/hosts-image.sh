#!/usr/bin/env bash
# Makes the disk of a stock Debian host for test/hosts: Debian's kernel, systemd, AppArmor, all engines, and CRIU as
# install-criu.sh installs it. Prints the directory that has disk.qcow2, vmlinuz and initrd, and keeps that for the next time.
# Needs the packages debootstrap, qemu-utils and e2fsprogs.
#
#   hosts-image.sh SUITE               trixie or bookworm
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source=scripts/private-apt.sh
source private-apt.sh
suite=$1
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/godwit/hosts
made=$cache/$suite-$(cat "${0##*/}" install-criu.sh private-apt.sh private-programs.sh | sha256sum | cut -c 1-16)
base=linux-image-cloud-amd64,systemd-sysv,udev,dbus,libpam-systemd,apparmor,openssh-server,iproute2,iputils-ping,iptables
base+=,nftables,procps,kmod,ca-certificates,initramfs-tools,zstd,patchelf,debian-archive-keyring
engines=(docker.io podman crun conmon containernetworking-plugins netavark runc containerd lxc busybox-static)

fail() {
  echo "hosts-image: $*" >&2
  exit 1
}

# The network of the virtual machines is made by whoever starts them, who gives a machine its address on the kernel's
# command line.
write_network() { # TREE
  cat >"$1/etc/systemd/system/godwit-lan.service" <<'UNIT'
[Unit]
Description=Address on the test's network, from the kernel's command line
DefaultDependencies=no
After=systemd-udevd.service local-fs.target
Before=network.target
Wants=network.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/godwit-lan

[Install]
WantedBy=multi-user.target
UNIT
  cat >"$1/usr/local/sbin/godwit-lan" <<'SCRIPT'
#!/bin/bash
set -e
read -ra words </proc/cmdline
for word in "${words[@]}"; do
  case $word in godwit.address=*) address=${word#*=} ;; esac
done
until [ -e /sys/class/net/eth0 ]; do udevadm settle; done
ip link set eth0 up
ip address replace "$address" dev eth0
SCRIPT
  chmod 755 "$1/usr/local/sbin/godwit-lan"
}

in_tree() { # COMMAND...
  chroot "$tree" /usr/bin/env DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

install_packages() {
  printf '#!/bin/sh\nexit 101\n' >"$tree/usr/sbin/policy-rc.d" # nothing is started in the tree
  chmod 755 "$tree/usr/sbin/policy-rc.d"
  [[ $suite == bookworm ]] || engines+=(docker-cli)
  in_tree apt-get update -qq
  in_tree apt-get install -qq -y --no-install-recommends "${engines[@]}" >/dev/null
  rm "$tree/usr/sbin/policy-rc.d"
  install -d "$tree/tmp/scripts"
  cp install-criu.sh private-apt.sh private-programs.sh "$tree/tmp/scripts/"
  in_tree /tmp/scripts/install-criu.sh
  rm -r "$tree/tmp/scripts"
  in_tree apt-get clean
}

configure() {
  echo '/dev/vda / ext4 defaults,noatime 0 1' >"$tree/etc/fstab"
  : >"$tree/etc/machine-id" # each machine makes its own
  rm -f "$tree/var/lib/dbus/machine-id"
  # Profiles of desktop programs confine nothing, and take a minute of an emulated processor to load.
  { grep --files-with-matches --recursive 'flags=(unconfined)' "$tree/etc/apparmor.d" || true; } | xargs --no-run-if-empty rm
  write_network "$tree"
  install -d -m 700 "$tree/root/.ssh"
  install -m 600 "$cache/key.pub" "$tree/root/.ssh/authorized_keys"
  in_tree systemctl --quiet enable godwit-lan ssh
  # Engines start when a test wants them; what Debian runs by the clock would take the emulated processor.
  in_tree systemctl --quiet disable docker.service docker.socket containerd podman.socket podman lxc lxc-net 2>/dev/null || true
  in_tree systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap fstrim.timer \
    dpkg-db-backup.timer man-db.timer logrotate.timer podman-auto-update.timer podman-restart
  printf '%s\n' virtio_blk virtio_net virtio_pci ext4 >>"$tree/etc/initramfs-tools/modules"
  sed -i 's/^MODULES=.*/MODULES=list/' "$tree/etc/initramfs-tools/initramfs.conf" # an initrd that is quick to unpack
  in_tree update-initramfs -u -k all
}

write_disk() { # INTO
  cp "$tree"/boot/vmlinuz-* "$1/vmlinuz"
  cp "$tree"/boot/initrd.img-* "$1/initrd"
  truncate --size 12G "$work/disk.raw"
  mkfs.ext4 -q -F -L root -E lazy_itable_init=1,lazy_journal_init=1 -d "$tree" "$work/disk.raw"
  qemu-img convert -f raw -O qcow2 "$work/disk.raw" "$1/disk.qcow2"
}

main() {
  local source
  if [[ -e $made ]]; then
    echo "$made"
    return
  fi
  for tool in debootstrap qemu-img mkfs.ext4 ssh-keygen; do
    command -v "$tool" >/dev/null || fail "$tool is needed and not installed"
  done
  source=$(mirror)
  [[ -n $source ]] || fail "apt on this machine has no Debian mirror; name one in GODWIT_DEBIAN_MIRROR"
  mkdir -p "$cache"
  [[ -e $cache/key ]] || ssh-keygen -q -t ed25519 -N '' -C godwit-test-hosts -f "$cache/key"
  work=$(mktemp --directory --tmpdir="$cache")
  tree=$work/tree
  trap 'umount "$tree/proc" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT
  echo "hosts-image: making a Debian host, $suite" >&2
  debootstrap --variant=minbase --include="$base" "$suite" "$tree" "$source" >"$cache/$suite.log" 2>&1 ||
    fail "debootstrap failed: $cache/$suite.log"
  cp /etc/resolv.conf "$tree/etc/resolv.conf"
  mount -t proc proc "$tree/proc"
  { install_packages && configure; } >>"$cache/$suite.log" 2>&1 || fail "packages: $cache/$suite.log"
  umount "$tree/proc"
  mkdir "$work/made"
  write_disk "$work/made"
  rm -rf "$cache/$suite"-*
  mv "$work/made" "$made"
  echo "$made"
}

main
