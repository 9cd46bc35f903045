package kernel

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Mapping is one mapping of a process's memory, as in /proc/PID/maps (proc_pid_maps(5)).
type Mapping struct {
	Start, End uint64
	Readable   bool
	Writable   bool
	Executable bool
	Shared     bool
	File       bool   // it has an inode: a file, shared memory, or huge pages
	Offset     uint64 // in the file
	Device     uint64 // of the file (unix.Mkdev)
	Inode      uint64 // of the file; 0 if there is none
	Name       string // path, or a name in brackets; may be empty
}

// AddressSpace is the memory of a process, seen from outside. It stays the memory of this process even if
// another process gets its PID.
type AddressSpace struct {
	pid  int
	proc *os.File // directory /proc/PID
}

// OpenAddressSpace opens the memory of a process. Error: fs.ErrNotExist when the process is gone.
func OpenAddressSpace(pid int) (*AddressSpace, error) {
	proc, err := os.OpenFile(fmt.Sprintf("/proc/%d", pid), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open the memory of process %d: %w", pid, err)
	}
	return &AddressSpace{pid: pid, proc: proc}, nil
}

// Close closes the process's files.
func (a *AddressSpace) Close() error { return a.proc.Close() }

// open opens a file of the process's directory in /proc. For an ended process, the error is fs.ErrNotExist.
func (a *AddressSpace) open(name string) (*os.File, error) {
	fd, err := unix.Openat(int(a.proc.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, a.failed("open its "+name, err)
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("/proc/%d/%s", a.pid, name)), nil
}

// stillThere reports whether the process still has its PID. Error: fs.ErrNotExist when it is gone.
func (a *AddressSpace) stillThere() error {
	err := unix.Faccessat(int(a.proc.Fd()), "stat", unix.F_OK, 0)
	if err != nil {
		return a.failed("look for it", err)
	}
	return nil
}

func (a *AddressSpace) failed(what string, err error) error {
	return fmt.Errorf("memory of process %d: %s: %w", a.pid, what, WhenGone(err))
}

// Mappings lists all mappings in ascending order. An ended process, including a zombie, has none.
func (a *AddressSpace) Mappings() ([]Mapping, error) {
	f, err := a.open("maps")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := parseMappings(f)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, a.failed("read its mappings", err)
	}
	return all, nil
}

func parseMappings(r io.Reader) ([]Mapping, error) {
	var all []Mapping
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), 64<<10)
	for lines.Scan() {
		m, err := parseMapping(lines.Bytes())
		if err != nil {
			return nil, err
		}
		if n := len(all); n > 0 {
			m.cut(all[n-1].End)
		}
		if m.Start < m.End {
			all = append(all, m)
		}
	}
	return all, lines.Err()
}

// cut removes the part below an address. The kernel lists mappings in pieces of a page of text, and repeats
// the mapping at the end of a piece if it has grown meanwhile.
func (m *Mapping) cut(low uint64) {
	if m.Start >= low {
		return
	}
	if m.File {
		m.Offset += low - m.Start
	}
	m.Start = low
}

var errMapping = errors.New("a line of maps has an unknown format")

// parseMapping reads a line such as "7f0000000000-7f0000001000 rw-p 00000000 00:00 0          [heap]".
func parseMapping(line []byte) (Mapping, error) {
	rest := line
	var fields [5][]byte
	for i := range fields {
		var ok bool
		fields[i], rest, ok = bytes.Cut(rest, []byte{' '})
		if !ok && i < len(fields)-1 || len(fields[i]) == 0 {
			return Mapping{}, fmt.Errorf("%w: %.200q", errMapping, line)
		}
	}
	low, high, ok := bytes.Cut(fields[0], []byte{'-'})
	start, err1 := strconv.ParseUint(string(low), 16, 64)
	end, err2 := strconv.ParseUint(string(high), 16, 64)
	offset, err3 := strconv.ParseUint(string(fields[2]), 16, 64)
	device, err4 := parseDevice(fields[3])
	inode, err5 := strconv.ParseUint(string(fields[4]), 10, 64)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil || !ok || len(fields[1]) != 4 {
		return Mapping{}, fmt.Errorf("%w: %.200q", errMapping, line)
	}
	return Mapping{
		Start: start, End: end,
		Readable:   fields[1][0] == 'r',
		Writable:   fields[1][1] == 'w',
		Executable: fields[1][2] == 'x',
		Shared:     fields[1][3] == 's',
		File:       inode != 0,
		Offset:     offset, Device: device, Inode: inode,
		Name: string(bytes.TrimLeft(rest, " ")),
	}, nil
}

// parseDevice reads a number such as fd:01.
func parseDevice(text []byte) (uint64, error) {
	major, minor, _ := bytes.Cut(text, []byte{':'})
	high, err1 := strconv.ParseUint(string(major), 16, 32)
	low, err2 := strconv.ParseUint(string(minor), 16, 32)
	return unix.Mkdev(uint32(high), uint32(low)), errors.Join(err1, err2)
}

// Locked lists the mappings that are locked in memory (mlock(2)). It is quick when there are none;
// otherwise the kernel walks all page tables of the process.
func (a *AddressSpace) Locked() ([]Mapping, error) {
	there, err := a.anyLocked()
	if err != nil || !there {
		return nil, err
	}
	f, err := a.open("smaps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	locked, err := parseLocked(f)
	if err != nil {
		return nil, a.failed("read its smaps", err)
	}
	return locked, nil
}

// parseLocked parses smaps. For a program with many libraries, that is some ten thousand lines, few of
// which matter, read during the freeze. So it examines only locked mappings closely.
func parseLocked(r io.Reader) ([]Mapping, error) {
	var locked []Mapping
	var head []byte // the maps line of the mapping that the lines describe
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Bytes()
		if len(line) > 0 && (line[0] < 'A' || line[0] > 'Z') { // others begin with a name, such as "Rss:"
			head = append(head[:0], line...)
			continue
		}
		if flags, ok := bytes.CutPrefix(line, []byte("VmFlags:")); ok &&
			bytes.Contains(append(flags, ' '), []byte(" lo ")) {
			m, err := parseMapping(head)
			if err != nil {
				return nil, err
			}
			locked = append(locked, m)
		}
	}
	return locked, lines.Err()
}

// anyLocked reads VmLck of /proc/PID/status, the size of all locked mappings.
func (a *AddressSpace) anyLocked() (bool, error) {
	f, err := a.open("status")
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), "VmLck:"); ok {
			return strings.TrimSpace(value) != "0 kB", nil
		}
	}
	if err := lines.Err(); err != nil {
		return false, a.failed("read its status", err)
	}
	return false, nil // no memory of its own: a zombie
}
