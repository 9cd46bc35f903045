package main

import (
	"math/rand/v2"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The heap and a stack grow and shrink in place. Only one thread uses them.
var (
	heapArena  = &arena{id: 20}
	stackArena = &arena{id: 21}
)

const (
	mostGrown = 1024           // pages
	stackEnd  = 0x500000000000 // far from where the kernel puts mappings, which would stand in the way
)

func brk(address uintptr) uintptr {
	at, _, _ := unix.Syscall(unix.SYS_BRK, address, 0, 0)
	return at
}

// heap moves the end of the heap, which the Go runtime does not use.
func heap(*arena) {
	h := heapArena
	if h.base == 0 {
		h.base = (brk(0) + pageSize - 1) &^ (pageSize - 1)
	}
	h.checkAll()
	pages := h.pages + rand.IntN(64)
	if rand.IntN(4) == 0 || pages > mostGrown {
		pages = rand.IntN(h.pages + 1)
	}
	if end := h.base + uintptr(pages)*pageSize; brk(end) != end {
		must("brk", unix.ENOMEM)
	}
	h.resize(pages)
}

// stack grows a mapping downwards by using it, as a stack does. Its pages are numbered from its end.
func stack(*arena) {
	s := stackArena
	if s.base == 0 || s.pages > mostGrown/2 {
		if s.base != 0 {
			s.checkAll()
			_, _, errno := unix.Syscall(unix.SYS_MUNMAP, s.base-uintptr(s.pages)*pageSize, uintptr(s.pages)*pageSize, 0)
			must("munmap", errno)
		}
		s.base = mmap(stackEnd-pageSize, 1, unix.MAP_FIXED_NOREPLACE|unix.MAP_GROWSDOWN) + pageSize
		s.pages, s.versions = 0, nil
	}
	s.checkAll()
	s.resize(s.pages + 1 + rand.IntN(8))
}

// at is where page n of one of these is.
func (a *arena) at(page int) uintptr {
	if a == stackArena {
		return a.base - uintptr(page+1)*pageSize
	}
	return a.base + uintptr(page)*pageSize
}

func (a *arena) checkAll() {
	for page := range a.pages {
		checked.Add(1)
		if !right(a.at(page)-uintptr(page)*pageSize, a.id, page, a.versions[page]) {
			bad.Add(1)
			println("BAD page", page, "of what grows, number", a.id)
		}
	}
}

// resize writes what is new, and some of what was there.
func (a *arena) resize(pages int) {
	for len(a.versions) < pages {
		a.versions = append(a.versions, 0)
	}
	for page := range pages {
		if page >= a.pages || page%16 == 0 {
			a.versions[page]++
			for _, place := range places {
				*(*uint64)(unsafe.Pointer(a.at(page) + place)) = word(a.id, page, a.versions[page], place)
			}
		}
	}
	a.pages = pages
}

// Arenas that processes share. Page n is written by process n modulo their number and read by all.
var sharedArenas [2]*arena

const writing = 1 << 31 // of a version: the page is being written

func share(parties, pages int) {
	for i := range sharedArenas {
		fd := ^uintptr(0)
		flags := uintptr(unix.MAP_SHARED)
		if i == 0 {
			flags |= unix.MAP_ANONYMOUS
		} else {
			memfd, err := unix.MemfdCreate("chaos", 0)
			check(err)
			check(unix.Ftruncate(memfd, int64(pages)*(pageSize+4)))
			fd = uintptr(memfd)
		}
		base, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, uintptr(pages)*(pageSize+4), unix.PROT_READ|unix.PROT_WRITE, flags, fd, 0)
		must("mmap", errno)
		sharedArenas[i] = &arena{
			id: uint64(30 + i), base: base, pages: pages, parties: parties,
			versions: unsafe.Slice((*uint32)(unsafe.Pointer(base+uintptr(pages)*pageSize)), pages),
		}
	}
}

// writeShared writes one of sixteen of a process's pages.
//
//go:nosplit
//go:norace
func writeShared(number, round int) {
	for i := 0; i < len(sharedArenas); i++ {
		a := sharedArenas[i]
		if a == nil {
			return
		}
		for page := number + round%16*a.parties; page < a.pages; page += 16 * a.parties {
			version := a.versions[page]
			if !right(a.base, a.id, page, version) {
				exit(uintptr(60 + i))
			}
			version++
			atomic.StoreUint32(&a.versions[page], version|writing)
			for j := 0; j < len(places); j++ {
				*(*uint64)(unsafe.Pointer(a.base + uintptr(page)*pageSize + places[j])) = word(a.id, page, version, places[j])
			}
			atomic.StoreUint32(&a.versions[page], version)
		}
	}
}

// checkShared looks at all pages that are not being written, and returns how often those of others
// were written.
func checkShared() (written uint64) {
	for _, a := range sharedArenas {
		if a == nil {
			return 0
		}
		for page := range a.pages {
			version := atomic.LoadUint32(&a.versions[page])
			is := right(a.base, a.id, page, version)
			if page%a.parties != 0 {
				written += uint64(version &^ writing)
			}
			if version&writing != 0 || atomic.LoadUint32(&a.versions[page]) != version {
				continue
			}
			if checked.Add(1); !is {
				bad.Add(1)
				println("BAD page", page, "of what is shared, number", a.id)
			}
		}
	}
	return written
}
