// Command chaos checks its own memory for ever while it does to it what processes do. Each page of
// its arenas holds its number and how often it was written, at several places; what it must hold is
// noted elsewhere. It writes a line for each round of checks, with how many pages were checked, and
// one that begins with BAD for each page that is wrong. Tests of memory run it, of single parts and
// of whole migrations.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const pageSize = 4096

var (
	megabytes = flag.Int("mb", 16, "memory")
	threads   = flag.Int("threads", 2, "threads that write and check")
	chaotic   = flag.Bool("chaos", false, "fork, move, give back and unmap all the time")
	only      = flag.String("deeds", "fork,fork,move,give,free,unmap,protect,grow,heap,stack", "which of these")
	lazy      = flag.Duration("pause", 0, "pause of each thread after a hundred pages")
	huge      = flag.Bool("huge", false, "ask for huge pages")
	lock      = flag.Bool("lock", false, "lock one arena")
	hugetlb   = flag.Bool("hugetlb", false, "use pages of a hugetlbfs for one arena")
	children  = flag.Int("children", 0, "processes that share memory copy-on-write from the begin")
	zombie    = flag.Bool("zombie", false, "leave a zombie")
	reserve   = flag.Bool("reserve", false, "reserve 9 TiB of addresses")
	sharing   = flag.Bool("shared", false, "share two arenas, one of them of a memfd, with the children, all of whom write")
)

// arena is a mapping and what its pages must hold. Threads hold mu for reading, who changes the
// mapping for writing.
type arena struct {
	mu       sync.RWMutex
	id       uint64
	base     uintptr
	pages    int
	versions []uint32 // 0: the page must be zero
	busy     []busy
	flags    int
	split    bool   // it is no longer one mapping
	freed    []bool // pages that may be zero at any time, until they are written
	parties  int    // processes that share it, each of which writes some of the pages; 0: it is private
}

type busy = atomic.Bool

// places are the words of a page that are written and checked.
var places = [...]uintptr{0, 8, 16, 1024, 2040, 4088}

//go:nosplit
//go:norace
func word(id uint64, page int, version uint32, place uintptr) uint64 {
	x := id<<56 ^ uint64(page)<<24 ^ uint64(version) ^ uint64(place)<<44
	x *= 0x9E3779B97F4A7C15
	return x ^ x>>29 | 1
}

//go:nosplit
//go:norace
func right(base uintptr, id uint64, page int, version uint32) bool {
	for _, place := range places {
		want := uint64(0)
		if version > 0 {
			want = word(id, page, version, place)
		}
		if *(*uint64)(unsafe.Pointer(base + uintptr(page)*pageSize + place)) != want {
			return false
		}
	}
	return true
}

func (a *arena) write(page int) {
	a.versions[page]++
	if a.freed != nil {
		a.freed[page] = false
	}
	for _, place := range places {
		*(*uint64)(unsafe.Pointer(a.base + uintptr(page)*pageSize + place)) = word(a.id, page, a.versions[page], place)
	}
}

var bad, checked atomic.Int64

func (a *arena) check(page int) {
	checked.Add(1)
	if a.freed != nil && a.freed[page] && right(a.base, a.id, page, 0) {
		a.versions[page], a.freed[page] = 0, false
	}
	if !right(a.base, a.id, page, a.versions[page]) {
		bad.Add(1)
		p := a.base + uintptr(page)*pageSize
		fmt.Printf("BAD arena %d page %d at %#x version %d: %#x, want %#x\n", a.id, page, p, a.versions[page],
			*(*uint64)(unsafe.Pointer(p)), word(a.id, page, a.versions[page], 0))
	}
}

func mmap(address uintptr, pages, flags int) uintptr {
	base, _, errno := unix.Syscall6(unix.SYS_MMAP, address, uintptr(pages)*pageSize, unix.PROT_READ|unix.PROT_WRITE,
		uintptr(unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|flags), ^uintptr(0), 0)
	must("mmap", errno)
	return base
}

// reserveAddresses reserves 1 TiB as a runtime does, and 8 TiB as MariaDB does: without MAP_NORESERVE.
func reserveAddresses() {
	for size, flags := range map[uintptr]uintptr{1 << 40: unix.MAP_NORESERVE, 8 << 40: 0} {
		_, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, size, unix.PROT_NONE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|flags, ^uintptr(0), 0)
		must("reserve addresses", errno)
	}
}

func must(what string, errno unix.Errno) {
	if errno != 0 {
		fmt.Printf("BAD %s: %v\n", what, errno)
		os.Exit(3)
	}
}

func newArena(id uint64, pages, flags int) *arena {
	a := &arena{id: id, pages: pages, versions: make([]uint32, pages), busy: make([]busy, pages), flags: flags}
	a.base = mmap(0, pages, flags)
	if *huge {
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, a.base, uintptr(pages)*pageSize, unix.MADV_HUGEPAGE)
		must("madvise", errno)
	}
	for page := range pages {
		if page%16 != 5 { // some are never touched, until later
			a.write(page)
		}
	}
	return a
}

// work checks and writes pages at random.
func work(arenas []*arena) {
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	for n := 0; ; n++ {
		a := arenas[random.IntN(len(arenas))]
		a.mu.RLock()
		page := random.IntN(a.pages)
		if a.busy[page].CompareAndSwap(false, true) {
			a.check(page)
			if random.IntN(4) > 0 {
				a.write(page)
			}
			a.busy[page].Store(false)
		}
		a.mu.RUnlock()
		if n%100 == 99 {
			time.Sleep(*lazy)
		}
	}
}

// sweep checks all pages in order, again and again.
func sweep(arenas []*arena) {
	for round := 1; ; round++ {
		for _, a := range arenas {
			for page := range a.pages {
				a.mu.RLock()
				for !a.busy[page].CompareAndSwap(false, true) {
					runtime.Gosched()
				}
				a.check(page)
				a.busy[page].Store(false)
				a.mu.RUnlock()
			}
			time.Sleep(time.Millisecond)
		}
		fmt.Printf("round %d bad %d checked %d of others %d\n", round, bad.Load(), checked.Load(), checkShared())
	}
}

func main() {
	flag.Parse()
	if *reserve {
		reserveAddresses()
	}
	debug.SetGCPercent(400)
	pages := *megabytes << 20 / pageSize / 4
	var arenas []*arena
	for id := range uint64(4) {
		if *socket != "" {
			arenas = append(arenas, lazyArena(id+1, pages))
		} else {
			arenas = append(arenas, newArena(id+1, pages, 0))
		}
	}
	if *socket != "" {
		beLazy(arenas)
	}
	if *losing {
		fmt.Println("ready")
		lookForLost(arenas)
	}
	if *lock {
		arenas = append(arenas, newArena(5, 512, unix.MAP_LOCKED))
	}
	if *hugetlb {
		arenas = append(arenas, newArena(6, 1024, unix.MAP_HUGETLB))
	}
	if *sharing {
		share(*children+1, pages)
	}
	if *zombie {
		if _, child := clone(); child {
			exit(0)
		}
	}
	watchPause = max(watchPause, lazy.Nanoseconds())
	var family []int
	for number := range *children {
		if pid, child := clone(); child {
			watch(arenas, number+1)
		} else {
			family = append(family, pid)
		}
	}
	for range *threads {
		go work(arenas)
	}
	if *sharing {
		go func() {
			for round := 0; ; round++ {
				writeShared(0, round)
				time.Sleep(time.Millisecond)
			}
		}()
	}
	go sweep(arenas)
	go chaos(arenas)
	fmt.Println("ready")
	parents(family)
}

// parents tells of children that found something wrong; they never end otherwise.
func parents(family []int) {
	for {
		for _, pid := range family {
			var status unix.WaitStatus
			if got, _ := unix.Wait4(pid, &status, unix.WNOHANG, nil); got == pid {
				fmt.Printf("BAD child %d: status %#x\n", pid, int(status))
				os.Exit(4)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
}
