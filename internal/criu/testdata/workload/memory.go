package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// memory has all kinds of memory.
func memory() map[string]maker {
	return map[string]maker{
		"memfd":         made(func() (int, error) { return unix.MemfdCreate("test", 0) }),
		"memfd-hugetlb": made(func() (int, error) { return unix.MemfdCreate("test", unix.MFD_HUGETLB) }),
		"memfd-secret":  raw(unix.SYS_MEMFD_SECRET, 0, 0),
		"aio":           aio,
		"map-shared":    mapping(unix.MAP_SHARED | unix.MAP_ANONYMOUS),
		"map-droppable": mapping(0x08 | unix.MAP_ANONYMOUS),
		"map-guard":     mapGuard,
		"map-large":     mapLarge,
		"map-reserve":   mapReserve,
		"map-io_uring":  mapRing,
		"map-device":    mapDevice,
	}
}

func mapping(flags int) maker {
	return func(string) (func(), error) {
		m, err := unix.Mmap(-1, 0, 2<<20, unix.PROT_READ|unix.PROT_WRITE, flags)
		if err != nil {
			return nil, err
		}
		m[0] = 1
		return func() { _ = unix.Munmap(m) }, nil
	}
}

func mapGuard(string) (func(), error) {
	m, err := unix.Mmap(-1, 0, 2<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	const madvGuardInstall = 102
	return func() { _ = unix.Munmap(m) }, unix.Madvise(m[:4096], madvGuardInstall)
}

// mapLarge makes large mappings of many kinds: full and sparse, with and without advice, a locked mapping,
// one with a guard, and a reserve.
func mapLarge(string) (func(), error) {
	type kind struct {
		mebibytes     int
		every         int // one page is written in every so many KiB; 0: none
		protect, flag int
		advice        int
	}
	const readWrite = unix.PROT_READ | unix.PROT_WRITE
	var all [][]byte
	for i, k := range []kind{
		{mebibytes: 64, every: 4, protect: readWrite},
		{mebibytes: 16, every: 4, protect: readWrite, advice: unix.MADV_HUGEPAGE},
		{mebibytes: 16, every: 12, protect: readWrite, advice: unix.MADV_DONTDUMP},
		{mebibytes: 8 << 10, every: 512 << 10, protect: readWrite, flag: unix.MAP_NORESERVE},
		{mebibytes: 8 << 10, protect: unix.PROT_NONE, flag: unix.MAP_NORESERVE},
		{mebibytes: 2, every: 4, protect: readWrite, flag: unix.MAP_LOCKED},
		{mebibytes: 4, every: 8, protect: readWrite, flag: unix.MAP_SHARED},
	} {
		if k.flag&unix.MAP_SHARED == 0 {
			k.flag |= unix.MAP_PRIVATE
		}
		m, err := unix.Mmap(-1, 0, k.mebibytes<<20, k.protect, unix.MAP_ANONYMOUS|k.flag)
		if err != nil {
			return nil, fmt.Errorf("mapping %d: %w", i, err)
		}
		if k.advice != 0 {
			if err := unix.Madvise(m, k.advice); err != nil {
				return nil, fmt.Errorf("mapping %d: %w", i, err)
			}
		}
		for at := 0; k.every > 0 && at < len(m); at += k.every << 10 {
			m[at] = byte(at>>12) | 1
		}
		all = append(all, m)
	}
	_ = unix.Mprotect(all[0][32<<20:], unix.PROT_READ) // splits the mapping in two
	const madvGuardInstall = 102
	_ = unix.Madvise(all[1][8<<20:8<<20+8192], madvGuardInstall) // on kernels that have it
	return func() {
		for _, m := range all {
			_ = unix.Munmap(m)
		}
	}, nil
}

// mapReserve reserves as much address space as some runtimes do.
func mapReserve(string) (func(), error) {
	mebibytes := 1 << 20
	m, err := unix.Mmap(-1, 0, mebibytes<<20, unix.PROT_NONE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	return func() { _ = unix.Munmap(m) }, err
}

// mapRing keeps a ring's memory and closes the ring's descriptor.
func mapRing(string) (func(), error) {
	fd, err := ring()
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	m, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return func() { _ = unix.Munmap(m) }, err
}

func mapDevice(path string) (func(), error) {
	fd, err := unix.Open(path, unix.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	m, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return func() { _ = unix.Munmap(m) }, err
}
