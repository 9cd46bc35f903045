package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
)

// A thread whose tracer dies continues at once with the registers that it has at that moment. While these
// are not its own, they make the thread restore its own registers by itself: the system call that it was
// made to make is followed by the return from a signal handler, with a signal frame in memory that nobody
// uses (heal_amd64.go, heal_arm64.go).
//
// So whenever the tracer dies, the thread continues as if it had been interrupted by a signal with
// SA_RESTART, without a descriptor. There are two possible differences. A system call with a timeout
// (nanosleep, poll, futex) restarts with its full timeout, or fails with EINTR if it was interrupted
// before. And if the thread has a seccomp filter that kills it for userfaultfd, and the tracer dies in the
// microsecond between the change of the registers and the entry into the system call, the thread is killed,
// because nobody suspends the filter any more.
//
// If the descriptor cannot be closed on that way (arm64; small static programs), it stays open: nothing is
// registered with it, and execve or the next tracer closes it (leftovers). Without the instructions,
// without such memory, with a shadow stack, or when the first thread has ended, the thread is not
// protected. Then the tracer must not die in that fraction of a millisecond.
const (
	healSize  = 16 << 10
	healSlack = 8 << 10               // below the frame, for a signal handler that runs there
	healMark  = "godwit way back\x00" // at the end: an earlier tracer died, and the contents are garbage
)

// protect prepares the way back. An error means that the thread has none.
func (t *Tracee) protect() error {
	if !t.gadget.wayBack() {
		return errors.New("not all instructions were found in its code")
	}
	if t.shadow {
		return errors.New("it has a shadow stack")
	}
	at, err := t.unusedStack()
	if err != nil {
		return err
	}
	image := make([]byte, healBytes())
	way, err := t.layOut(image[:len(image)-len(healMark)], at)
	if err != nil {
		return err
	}
	copy(image[len(image)-len(healMark):], healMark)
	if err := t.write(at, image); err != nil {
		return err
	}
	t.heal, t.scratch = way, at
	return nil
}

// healBytes returns the size of a way back: whole pages.
func healBytes() int { return max(healSize, os.Getpagesize()) }

// leftovers are descriptors that an earlier tracer has left behind when it died, as the mark at the end of
// the stack shows: userfaultfds without any requested features, so that they are useless to the process as
// well.
func (t *Tracee) leftovers() []uint64 {
	if !t.marked() {
		return nil
	}
	var found []uint64
	fds, _ := descriptorsOf(t.PID, "anon_inode:[userfaultfd]") // unreadable ones stay
	for _, fd := range fds {
		info, _ := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", t.PID, fd))
		if strings.Contains(string(info), "API:\taa:0:") { // fs/userfaultfd.c, userfaultfd_show_fdinfo
			found = append(found, uint64(fd))
		}
	}
	return found
}

// unusedStack finds unused pages at the lower end of the main thread's stack. Only this thread, which is
// stopped, can come to use them, and only if it goes far deeper in its stack. They are zero before and
// after.
func (t *Tracee) unusedStack() (uint64, error) {
	if t.TID != t.PID || t.stack.End == 0 {
		return 0, errors.New("it has no stack of its own")
	}
	at, size, sp := t.stack.Start, uint64(healBytes()), t.regs.stackPointer()
	if sp >= at && sp < at+size && t.marked() {
		// the thread had no processor since an earlier tracer died: it is on the way back there, and needs
		// it
		at += size
	}
	if sp >= at && sp < at+3*size { // if there is room for a second one
		return 0, errors.New("its stack is nearly full")
	}
	end := make([]byte, size)
	if err := t.read(at, end); err != nil {
		return 0, err
	}
	if !bytes.HasSuffix(end, []byte(healMark)) && len(bytes.Trim(end, "\x00")) > 0 {
		return 0, errors.New("its stack was used to the end")
	}
	return at, nil
}

// marked reports whether an earlier tracer has died and left a way back at the end of the stack.
func (t *Tracee) marked() bool {
	mark := make([]byte, len(healMark))
	at := t.stack.Start + uint64(healBytes()-len(mark))
	return t.stack.End > 0 && t.read(at, mark) == nil && string(mark) == healMark
}
