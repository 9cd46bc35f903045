package kernel

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

const someKinds = `55d0c0000000-55d0c0002000 r-xp 00001000 fe:01 1234                       /usr/bin/thing: odd - name
Size:                  8 kB
Rss:                   8 kB
Pss:                   4 kB
Anonymous:             4 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me dw
7f1200000000-7f1200400000 rw-p 00000000 00:00 0 
Rss:                4000 kB
Pss:                2000 kB
Anonymous:          4000 kB
Swap:                 96 kB
SwapPss:              48 kB
7f1300000000-7f1300100000 rw-s 00000000 00:01 77                         /memfd:ring (deleted)
Rss:                1024 kB
Pss:                 512 kB
Anonymous:             0 kB
`

func TestParseKinds(t *testing.T) {
	want := Kinds{Private: 4096 << 10, OwnShare: 2048 << 10, Shared: 512 << 10, File: 4 << 10,
		Changed: 4 << 10, Swapped: 96 << 10, Mappings: 3}
	if got := parseKinds(someKinds); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := parseKinds("no such-thing as: this\n:\n"); got.Private != 0 {
		t.Errorf("%+v of nothing", got)
	}
}

// TestKindsOfThisProcess allocates memory of each kind and finds it.
func TestKindsOfThisProcess(t *testing.T) {
	before, err := ReadKinds(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const size = 32 << 20
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE|
		unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	after, err := ReadKinds(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if got := int64(after.Private) - int64(before.Private); got < size*9/10 || after.Mappings == 0 {
		t.Errorf("%d bytes more, want %d; %+v", got, size, after)
	}
}
