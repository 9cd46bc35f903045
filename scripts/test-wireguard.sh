#!/usr/bin/env bash
# Tests the overlay with the WireGuard of Debian's kernels, in QEMU, for machines whose own kernel has no WireGuard. Also runs
# `godwit-lab bench network` there, to show that all overlays work. The virtual machines are emulated: compare the figures with
# each other only, not with hardware. Needs these packages:
#
#   qemu-system-x86 busybox-static kmod xz-utils
#
#   test-wireguard.sh [SUITE...]     default: trixie
#
# Leaves build/test-wireguard-SUITE.log and build/test-wireguard-SUITE.json. Apart from those, it writes only to a cache
# directory, ${XDG_CACHE_HOME:-~/.cache}/godwit/overlay-kernels, about 15 MiB for each kernel.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/private-apt.sh
source scripts/private-apt.sh
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/godwit/overlay-kernels
limit=${GODWIT_KERNEL_TIMEOUT:-3600} # seconds for one kernel
modules=(wireguard chacha_x86_64 poly1305_x86_64 curve25519_x86_64 vxlan veth tun bridge br_netfilter nf_conntrack
  nf_conntrack_netlink nf_tables nft_ct nft_nat nft_masq nft_chain_nat nft_meta_bridge nft_limit nft_queue nft_reject_ipv4
  nft_fib_ipv4 nf_conntrack_bridge)
tests='^Test(Injected|Replayed|Encrypted|OtherOverlay|Strangers|Reachable|UnderlayIPv6)'

fail() {
  echo "test-wireguard: $*" >&2
  exit 1
}

# Fetches a suite's kernel into the cache, unless it is there: vmlinuz, and the modules, numbered in the order in which they
# are to be loaded.
fetch_kernel() { # SUITE
  local into=$cache/$1 work=$scratch/apt-$1 source package version module path number=100
  [[ ! -e $into ]] || return 0
  echo "test-wireguard: fetching the kernel of $1"
  source=$(mirror)
  [[ -n $source ]] || fail "apt on this machine has no Debian mirror; name one in GODWIT_DEBIAN_MIRROR"
  write_apt_configuration "$work" "$source" "$1" amd64
  export APT_CONFIG=$work/apt.conf
  update_index "$work"
  package=$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" { print $2; exit }')
  (cd "$work" && apt-get download -qq "$package")
  unset APT_CONFIG
  dpkg-deb -x "$work/$package"_*.deb "$work/root"
  version=${package#linux-image-}
  [[ -e $work/root/lib ]] || ln -s usr/lib "$work/root/lib"
  depmod -b "$work/root" "$version"
  mkdir -p "$into.new/modules"
  mv "$work"/root/boot/vmlinuz-* "$into.new/vmlinuz"
  for module in "${modules[@]}"; do # those that a kernel has built in, or has not, have no path
    modprobe -d "$work/root" -S "$version" --show-depends "$module" 2>/dev/null || true
  done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$work/order"
  while read -r path; do
    module=$into.new/modules/$((number++))-$(basename "${path%.xz}")
    if [[ $path == *.xz ]]; then xz -dc "$path" >"$module"; else cp "$path" "$module"; fi
  done <"$work/order"
  mv "$into.new" "$into"
  rm -rf "$work"
}

build_root() { # SUITE ROOT
  mkdir -p "$2"/{workloads,tests.d}
  export CGO_ENABLED=0
  go build -trimpath -ldflags '-s -w' -o "$2/init" ./test/kernels/init
  go build -trimpath -ldflags '-s -w' -o "$2/tests.d/godwit-lab" ./cmd/godwit-lab
  go test -c -trimpath -ldflags '-s -w' -o "$2/tests.d/network" ./internal/network
  cp -r "$cache/$1/modules" "$2/modules"
  cp "$(command -v busybox)" "$2/tests.d/"
  cat >"$2/tests" <<LIST
network /tests.d /tests.d/network -test.v -test.run=$tests
bench /tests.d /tests.d/godwit-lab bench network --quick --json /tmp/network.json
json /tests.d /tests.d/busybox dd if=/tmp/network.json of=/dev/ttyS1
LIST
}

run_suite() { # SUITE
  local work=$scratch/$1 log=build/test-wireguard-$1.log result=FAILED
  fetch_kernel "$1"
  build_root "$1" "$work"
  (cd "$work" && find . | busybox cpio -o -H newc 2>/dev/null) >"$scratch/$1.cpio"
  # The console goes to the log, the benchmark's document by the second serial line. The machine powers itself off.
  timeout "$limit" nice qemu-system-x86_64 -M q35 -cpu max -accel tcg,thread=multi -smp 2 -m 2048 -nodefaults -no-reboot \
    -display none -serial stdio -serial "file:build/test-wireguard-$1.json" -kernel "$cache/$1/vmlinuz" \
    -initrd "$scratch/$1.cpio" -append "console=ttyS0 quiet panic=-1 overlay=wireguard" </dev/null 2>&1 |
    sed --unbuffered 's/\r//g' >"$log" || true
  ! grep --quiet '^test-kernels: all done, 0 failed$' "$log" || result=passed
  echo "test-wireguard: $1: $result ($log)"
  grep -aE '^test-kernels: |^--- |^one TCP|processors' "$log" | sed 's/^/  /'
  [[ $result == passed ]]
}

main() {
  local suite failed=0 suites=("$@")
  for suite in qemu-system-x86_64 busybox depmod modprobe xz; do
    command -v "$suite" >/dev/null || fail "$suite is needed and not installed"
  done
  (($# > 0)) || suites=(trixie)
  mkdir -p build "$cache"
  scratch=$(mktemp --directory)
  trap 'rm -rf "$scratch"' EXIT
  for suite in "${suites[@]}"; do
    # Neither "run_suite || …" nor "if run_suite": set -e would have no
    # effect in it.
    set +e
    (set -e && run_suite "$suite")
    failed=$((failed | $?))
    set -e
  done
  ((failed == 0)) || fail "FAILED"
  echo "test-wireguard: all passed"
}

main "$@"
