package main

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// chaos does to arenas what programs do to their memory.
func chaos(arenas []*arena) {
	if !*chaotic {
		return
	}
	arenas = arenas[:4] // the ordinary ones
	all := map[string]func(*arena){
		"fork": forkAndCheck, "move": move, "give": giveBack, "unmap": unmapPart, "protect": protect, "grow": grow,
		"free": free, "heap": heap, "stack": stack,
	}
	var deeds []func(*arena)
	for name := range strings.SplitSeq(*only, ",") {
		deeds = append(deeds, all[name])
	}
	for n := 1; ; n++ {
		a := arenas[rand.IntN(len(arenas))]
		deeds[rand.IntN(len(deeds))](a)
		if n%500 == 0 {
			fmt.Println("deeds", n)
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// clone makes a child without a Go runtime: it must only run code without stack checks. It has all
// signals blocked.
func clone() (pid int, child bool) {
	runtime.LockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before)
	n, errno := rawClone()
	if errno == 0 && n == 0 {
		return 0, true
	}
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
	runtime.UnlockOSThread()
	must("clone", errno)
	return int(n), false
}

//go:nosplit
//go:norace
func rawClone() (uintptr, unix.Errno) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	return pid, errno
}

//go:nosplit
//go:norace
func exit(code uintptr) { unix.RawSyscall(unix.SYS_EXIT_GROUP, code, 0, 0) }

//go:nosplit
//go:norace
func nap(nanoseconds int64) {
	t := unix.Timespec{Nsec: nanoseconds}
	unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0)
}

// watchPause is what a child rests after each arena, in nanoseconds.
var watchPause int64 = 2e6

// watch is the life of a child that was made at the begin: it checks its copy of the memory for
// ever, and writes to a part of it, and to its part of what is shared.
//
//go:nosplit
//go:norace
func watch(arenas []*arena, number int) {
	for round := 0; ; round++ {
		writeShared(number, round)
		for _, a := range arenas {
			for page := 0; page < a.pages; page++ {
				if !right(a.base, a.id, page, a.versions[page]) {
					exit(uintptr(40 + a.id))
				}
				if page%8 == 3 && a.versions[page] > 0 { // a write that changes nothing but who owns the page
					p := (*uint64)(unsafe.Pointer(a.base + uintptr(page)*pageSize))
					*p = word(a.id, page, a.versions[page], 0)
				}
			}
			nap(watchPause)
		}
	}
}

// forkAndCheck makes a child while nobody writes, which checks what it has while its parent goes on.
func forkAndCheck(a *arena) {
	a.mu.Lock()
	pid, child := clone()
	if child {
		checkAndExit(a)
	}
	a.mu.Unlock()
	go func() {
		var status unix.WaitStatus
		for {
			if _, err := unix.Wait4(pid, &status, 0, nil); err != unix.EINTR {
				break
			}
		}
		if status != 0 {
			bad.Add(1)
			fmt.Printf("BAD forked child of arena %d: status %#x\n", a.id, int(status))
		}
	}()
}

//go:nosplit
//go:norace
func checkAndExit(a *arena) {
	for page := 0; page < a.pages; page++ {
		gone := a.freed != nil && a.freed[page] && right(a.base, a.id, page, 0)
		if !gone && !right(a.base, a.id, page, a.versions[page]) {
			exit(uintptr(50 + a.id))
		}
		if page%512 == 0 {
			nap(100e3)
		}
	}
	exit(0)
}

// move moves the arena to another address. When it has become several mappings the kernel does not
// do that at once; then some pages go away and come back.
func move(a *arena) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.split {
		to := mmap(0, a.pages, 0) // over which it is moved
		remap(a.base, to, uintptr(a.pages)*pageSize)
		a.base = to
		return
	}
	first, pages := a.some()
	at, away := a.base+uintptr(first)*pageSize, mmap(0, pages, 0)
	for page := range uintptr(pages) {
		remap(at+page*pageSize, away+page*pageSize, pageSize)
	}
	time.Sleep(50 * time.Microsecond)
	for page := range uintptr(pages) {
		remap(away+page*pageSize, at+page*pageSize, pageSize)
	}
}

func remap(from, to, size uintptr) {
	_, _, errno := unix.Syscall6(unix.SYS_MREMAP, from, size, size, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to, 0)
	must("mremap", errno)
}

// some are a few pages of an arena.
func (a *arena) some() (first, pages int) {
	pages = 1 + rand.IntN(64)
	return rand.IntN(a.pages - pages), pages
}

func (a *arena) zeroed(first, pages int) {
	for page := first; page < first+pages; page++ {
		a.versions[page] = 0
		if a.freed != nil {
			a.freed[page] = false
		}
	}
}

func giveBack(a *arena) {
	a.mu.Lock()
	defer a.mu.Unlock()
	first, pages := a.some()
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, a.base+uintptr(first)*pageSize, uintptr(pages)*pageSize, unix.MADV_DONTNEED)
	must("madvise", errno)
	a.zeroed(first, pages)
}

// free lets the kernel take pages whenever it likes, and writes half of them again, which it then may not.
func free(a *arena) {
	a.mu.Lock()
	defer a.mu.Unlock()
	first, pages := a.some()
	if a.freed == nil {
		a.freed = make([]bool, a.pages)
	}
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, a.base+uintptr(first)*pageSize, uintptr(pages)*pageSize, unix.MADV_FREE)
	must("madvise", errno)
	for page := first; page < first+pages; page++ {
		if a.versions[page] > 0 {
			a.freed[page] = true
		}
		if page%2 == 0 {
			a.write(page)
		}
	}
}

func unmapPart(a *arena) {
	a.mu.Lock()
	defer a.mu.Unlock()
	first, pages := a.some()
	at := a.base + uintptr(first)*pageSize
	_, _, errno := unix.Syscall(unix.SYS_MUNMAP, at, uintptr(pages)*pageSize, 0)
	must("munmap", errno)
	if got := mmap(at, pages, unix.MAP_FIXED); got != at {
		must("mmap again", unix.EINVAL)
	}
	a.zeroed(first, pages)
	a.split = true
}

// protect splits a mapping and joins it again.
func protect(a *arena) {
	a.mu.Lock()
	defer a.mu.Unlock()
	first, pages := a.some()
	at := a.base + uintptr(first)*pageSize
	_, _, errno := unix.Syscall(unix.SYS_MPROTECT, at, uintptr(pages)*pageSize, unix.PROT_NONE)
	must("mprotect", errno)
	time.Sleep(100 * time.Microsecond)
	_, _, errno = unix.Syscall(unix.SYS_MPROTECT, at, uintptr(pages)*pageSize, unix.PROT_READ|unix.PROT_WRITE)
	must("mprotect", errno)
}

// grow makes a new mapping, uses it and removes it.
func grow(*arena) {
	fresh := newArena(99, 1+rand.IntN(300), 0)
	for page := range fresh.pages {
		fresh.check(page)
	}
	_, _, errno := unix.Syscall(unix.SYS_MUNMAP, fresh.base, uintptr(fresh.pages)*pageSize, 0)
	must("munmap", errno)
}
