#!/usr/bin/env bash
# Runs the tests of memory tracking on other kernels: Debian's, in virtual machines of QEMU, without acceleration and
# without network. Nothing of this machine is touched but a cache directory; root is not needed, but for the packages:
#
#   qemu-system-x86, and for arm64 qemu-system-arm gcc-aarch64-linux-gnu libc6-dev-arm64-cross
#
#   test-kernels.sh [KERNEL...]     default: all that are listed below
#
# Kernels are kept until they are removed by hand: ${XDG_CACHE_HOME:-~/.cache}/godwit/kernels, some 15 MiB each.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/private-apt.sh
source scripts/private-apt.sh
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/godwit/kernels
limit=${GODWIT_KERNEL_TIMEOUT:-3600} # seconds for one kernel's tests

# Debian suite, architecture, what the tests are to find, and what they cannot do there.
kernels() {
  cat <<LIST
bookworm-amd64 soft-dirty TestAsynchronous|/direct_$
trixie-amd64 soft-dirty nothing
trixie-arm64 write-protect nothing
LIST
}
# bookworm: Linux 6.1, no PAGEMAP_SCAN, no asynchronous write-protection, and its tmpfs has no O_DIRECT.
# trixie: Linux 6.12, on amd64 with everything, on arm64 without soft-dirty, as all arm64 kernels.

fail() {
  echo "test-kernels: $*" >&2
  exit 1
}

need() { # PROGRAM PACKAGE
  command -v "$1" >/dev/null || fail "$1 is needed and not installed: apt-get install --no-install-recommends $2"
}

check_tools() { # ARCHITECTURE
  need busybox busybox-static
  need dpkg-deb dpkg
  case $1 in
  amd64) need qemu-system-x86_64 qemu-system-x86 && need gcc "gcc libc6-dev" ;;
  arm64)
    need qemu-system-aarch64 qemu-system-arm
    need aarch64-linux-gnu-gcc "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
    ;;
  esac
}

# Fetches a suite's kernel into the cache, unless it is there: vmlinuz, and those modules that the tests need.
fetch_kernel() { # SUITE ARCHITECTURE
  local suite=$1 architecture=$2 into=$cache/$1-$2 work source package
  [[ ! -e $into/vmlinuz ]] || return 0
  echo "test-kernels: fetching the kernel of $suite for $architecture"
  source=$(mirror)
  [[ -n $source ]] || fail "apt on this machine has no Debian mirror; name one in GODWIT_DEBIAN_MIRROR"
  work=$scratch/apt-$suite-$architecture
  write_apt_configuration "$work" "$source" "$suite" "$architecture"
  export APT_CONFIG=$work/apt.conf
  update_index "$work"
  package=$(apt-cache depends "linux-image-$architecture" | awk '$1 == "Depends:" { print $2; exit }')
  (cd "$work" && apt-get download -qq "$package")
  unset APT_CONFIG
  mkdir "$work/root"
  unpack() { dpkg-deb --fsys-tarfile "$work/$package"_*.deb | tar --extract --directory "$work/root" --wildcards "$1"; }
  unpack './boot/vmlinuz-*'
  unpack '*/fs/fuse/fuse.ko' 2>/dev/null || true # where it is built in there is none
  mkdir -p "$into.new"
  find "$work/root" -name fuse.ko -exec cp {} "$into.new" \;
  mv "$work"/root/boot/vmlinuz-* "$into.new/vmlinuz"
  mv "$into.new" "$into"
  rm -rf "$work"
}

# Builds what goes into the machine: init, tests, workloads and their C library.
build_root() { # ARCHITECTURE ROOT
  local architecture=$1 root=$2 cc=gcc testdata=internal/memory/testdata
  mkdir -p "$root"/{workloads,modules,tests.d/memory,tests.d/kernel,tests.d/inject,lib,lib64}
  export CGO_ENABLED=0 GOARCH=$architecture
  go build -trimpath -ldflags '-s -w' -o "$root/init" ./test/kernels/init
  go test -c -trimpath -ldflags '-s -w' -o "$root/tests.d/memory/test" ./internal/memory
  go test -c -trimpath -ldflags '-s -w' -o "$root/tests.d/kernel/test" ./internal/kernel
  go test -c -trimpath -ldflags '-s -w' -o "$root/tests.d/inject/test" ./internal/kernel/inject
  go build -o "$root/workloads/workload-go" ./$testdata/workload32
  if [[ $architecture == amd64 ]]; then
    GOARCH=386 go build -o "$root/workloads/workload32" ./$testdata/workload32
    mkdir "$root/lib/x86_64-linux-gnu"
    cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
    cp -L /lib/x86_64-linux-gnu/libc.so.6 "$root/lib/x86_64-linux-gnu/"
  else
    GOARCH=arm GOARM=7 go build -o "$root/workloads/workload32" ./$testdata/workload32
    cc=aarch64-linux-gnu-gcc
    cp -L /usr/aarch64-linux-gnu/lib/{ld-linux-aarch64.so.1,libc.so.6} "$root/lib/"
  fi
  unset CGO_ENABLED GOARCH
  $cc -O1 -pthread -o "$root/workloads/workload" $testdata/workload/workload.c
  $cc -O1 -pthread -static -o "$root/workloads/workload-static" $testdata/workload/workload.c
  $cc -O1 -o "$root/workloads/workloadscript" $testdata/script/script.c
}

# The tests, as test/kernels/init reads them. -test.short makes them fit a processor that is emulated.
list_tests() { # SKIP PROTECT
  local memory='^Test(WhatWasSent|AnySequence|AttachToStopped|TracedByAnother|32Bit|AgentDies|DeviceWrites|Asynchronous|WrittenBy)'
  local kernel='^Test(Entries|SoftDirty)' inject='^TestUntraceable'
  # What is done inside of a process by the way that a kernel has not cannot be tested there.
  [[ $2 == no ]] || inject='^Test(Untraceable|OpenUserfault|TracerDies|Vfork|FilterKills)'
  echo "kernel /tests.d/kernel /tests.d/kernel/test -test.v -test.short -test.run=$kernel"
  echo "inject /tests.d/inject /tests.d/inject/test -test.v -test.short -test.run=$inject"
  echo "memory /tests.d/memory /tests.d/memory/test -test.v -test.short -test.run=$memory -test.skip=$1"
}

run_kernel() { # SUITE ARCHITECTURE EXPECT SKIP
  local name=$1-$2 architecture=$2 work=$scratch/$1-$2 log=build/test-kernels-$1-$2.log machine console protect=yes
  check_tools "$architecture"
  fetch_kernel "$1" "$2"
  [[ $1 != bookworm ]] || protect=no
  build_root "$architecture" "$work/root"
  list_tests "$4" "$protect" >"$work/root/tests"
  find "$cache/$name" -name '*.ko' -exec cp {} "$work/root/modules/" \;
  (cd "$work/root" && find . | busybox cpio -o -H newc 2>/dev/null) >"$work/initramfs"
  if [[ $architecture == amd64 ]]; then
    machine=(qemu-system-x86_64 -M q35 -cpu max) console=ttyS0
  else
    machine=(qemu-system-aarch64 -M virt -cpu "max,pauth-impdef=on") console=ttyAMA0
  fi
  # The console goes to the log. The machine powers itself off.
  timeout "$limit" nice "${machine[@]}" -accel tcg,thread=multi -smp 2 -m 1536 -nodefaults -no-reboot -display none \
    -serial stdio -kernel "$cache/$name/vmlinuz" -initrd "$work/initramfs" \
    -append "console=$console quiet panic=-1 expect=$3" </dev/null 2>&1 | sed --unbuffered 's/\r//g' >"$log" || true
  rm -rf "$work"
  tell "$name" "$log"
}

# Prints what happened, and says so by its status.
tell() { # NAME LOG
  local result=FAILED
  ! grep --quiet '^test-kernels: all done, 0 failed$' "$2" || result=passed
  echo "test-kernels: $1: $result ($2)"
  grep -aoE 'the best tracking of this kernel: [a-z-]+|^test-kernels: .*|^ *--- FAIL: .*' "$2" | awk '!seen[$0]++' | sed 's/^/  /'
  [[ $result == passed ]]
}

main() {
  local name expect skip status failed=0 chosen=" $* "
  mkdir -p build "$cache"
  scratch=$(mktemp --directory)
  trap 'rm -rf "$scratch"' EXIT
  while read -r name expect skip; do
    [[ $# -eq 0 || $chosen == *" $name "* ]] || continue
    # Not "run_kernel || …": set -e would have no effect in it, and it would go on after what failed.
    set +e
    (set -e && run_kernel "${name%-*}" "${name##*-}" "$expect" "$skip")
    status=$?
    set -e
    ((status == 0)) || failed=1
  done < <(kernels)
  ((failed == 0)) || fail "FAILED"
  echo "test-kernels: all passed"
}

main "$@"
