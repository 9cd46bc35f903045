package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
)

// A thread whose tracer dies goes on at once with the registers that it has then. While those are not
// its own, they are such that it puts its own back by itself: what follows the system call that it was
// made to do leads to the return from a signal handler, with a signal frame in memory that nobody uses
// (heal_amd64.go, heal_arm64.go).
//
// So whenever the tracer dies the thread goes on as if it had been interrupted by a signal with
// SA_RESTART, without a descriptor. What may be different then: a system call with a timeout (nanosleep,
// poll, futex) begins anew with all of it, or fails with EINTR if it was interrupted before; and if the
// thread has a seccomp filter that kills it for userfaultfd, and the tracer dies in the microsecond
// between the change of the registers and the entry into the system call, it is killed: nobody suspends
// the filter any more.
//
// Where the descriptor cannot be closed on that way (arm64; small static programs) it stays open:
// nothing is registered with it, execve closes it, and so does the next tracer (leftovers). Without the
// instructions, without such memory, with a shadow stack, or when the first thread has ended the thread
// is not protected. Then the tracer must not die in that fraction of a millisecond.
const (
	healSize  = 16 << 10
	healSlack = 8 << 10               // below the frame, for a signal handler that runs there
	healMark  = "godwit way back\x00" // at the end: an earlier tracer died, and what is there is of no use
)

// protect prepares the way back. An error means that the thread goes without.
func (t *tracee) protect() error {
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

// healBytes is how much memory a way back takes: whole pages.
func healBytes() int { return max(healSize, os.Getpagesize()) }

// leftovers are descriptors that an earlier tracer has left behind when it died, which the mark at the
// end of the stack tells: userfaultfds that nobody has ever asked for features, so that they are of no
// use to the process either.
func (t *tracee) leftovers() []uint64 {
	if !t.marked() {
		return nil
	}
	var found []uint64
	fds, _ := descriptorsOf(t.pid, "anon_inode:[userfaultfd]") // what cannot be read stays
	for _, fd := range fds {
		info, _ := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", t.pid, fd))
		if strings.Contains(string(info), "API:\taa:0:") { // fs/userfaultfd.c, userfaultfd_show_fdinfo
			found = append(found, uint64(fd))
		}
	}
	return found
}

// unusedStack finds pages at the lower end of the main thread's stack that hold nothing: only this
// thread, which is stopped, can come to use them, and for that it would have to be far deeper in its
// stack. They are zeros before and after.
func (t *tracee) unusedStack() (uint64, error) {
	if t.tid != t.pid || t.stack.End == 0 {
		return 0, errors.New("it has no stack of its own")
	}
	at, size, sp := t.stack.Start, uint64(healBytes()), t.regs.stackPointer()
	if sp >= at && sp < at+size && t.marked() {
		// it had no processor yet since an earlier tracer died: it is on the way back there, and
		// needs it
		at += size
	}
	if sp >= at && sp < at+3*size { // with room for a second one
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

// marked tells whether an earlier tracer has died and left a way back at the end of the stack.
func (t *tracee) marked() bool {
	mark := make([]byte, len(healMark))
	at := t.stack.Start + uint64(healBytes()-len(mark))
	return t.stack.End > 0 && t.read(at, mark) == nil && string(mark) == healMark
}
