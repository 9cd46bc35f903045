package criu

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/kernel"
)

// A lazy dump still walks all memory three times: the kernel counts the pages of each mapping for
// /proc/PID/smaps, CRIU asks where they are, and puts each of them on a list and in a pipe. This takes 70
// ms per GiB, and 16 bytes for each page of a mapping, even if the page does not exist. So CRIU gets a
// table of mappings in which large private mappings are cut to their first page. After the dump, their ends
// are corrected in CRIU's images. Somebody else must carry what was cut off (Dump.Cut), because the images
// list none of it. A dump that is not lazy has only empty mappings cut.

// leastCut is the minimum size of mappings that are cut. Smaller mappings cost little.
const leastCut = 1 << 20

// mapping is one mapping of /proc/PID/smaps (proc_pid_smaps(5)).
type mapping struct {
	start, end  uint64
	permissions string
	rest        string // of the first line, after the permissions: offset, device, inode, name
	flags       string
}

// readMappings reads the parts of a table that CRIU reads.
func readMappings(r io.Reader) ([]mapping, error) {
	var all []mapping
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), 64<<10)
	for lines.Scan() {
		line := lines.Bytes()
		if flags, ok := bytes.CutPrefix(line, []byte("VmFlags: ")); ok {
			if len(all) == 0 {
				return nil, errTable
			}
			all[len(all)-1].flags = string(flags)
			continue
		}
		if field, _, ok := bytes.Cut(line, []byte{' '}); !ok || len(field) == 0 ||
			field[len(field)-1] == ':' {
			continue
		}
		m, err := parseFirstLine(string(line))
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, lines.Err()
}

var errTable = errors.New("a table of mappings has an unknown format")

func parseFirstLine(line string) (mapping, error) {
	addresses, rest, _ := strings.Cut(line, " ")
	permissions, rest, ok := strings.Cut(rest, " ")
	low, high, both := strings.Cut(addresses, "-")
	start, err1 := strconv.ParseUint(low, 16, 64)
	end, err2 := strconv.ParseUint(high, 16, 64)
	if !ok || !both || err1 != nil || err2 != nil || len(permissions) != 4 || end <= start {
		return mapping{}, fmt.Errorf("%w: %.200q", errTable, line)
	}
	return mapping{start: start, end: end, permissions: permissions, rest: rest}, nil
}

// write writes a mapping in the form that CRIU reads. CRIU skips other lines.
func (m mapping) write(w *bytes.Buffer) {
	fmt.Fprintf(w, "%x-%x %s %s\nVmFlags: %s\n", m.start, m.end, m.permissions, m.rest, m.flags)
}

// notCut are the flags of mappings that are not cut: those that CRIU itself restores (locked, huge pages;
// devices), those that the kernel treats specially (shadow stacks, droppable mappings), and those that grow
// down, whose first page is special.
var notCut = [...]string{"lo", "ht", "io", "pf", "ss", "dp", "gd"}

// canCut reports whether a mapping is large and one that CRIU can restore lazily (criu/include/vma.h,
// vma_entry_can_be_lazy).
func (m mapping) canCut() bool {
	if m.end-m.start < leastCut || m.permissions[3] != 'p' || m.flags == "" {
		return false
	}
	fields := strings.Fields(m.rest) // offset, device, inode, name
	if len(fields) < 3 || fields[1] != "00:00" || fields[2] != "0" || len(fields) > 3 &&
		isKernels(fields[3]) {
		return false
	}
	for flag := range strings.FieldsSeq(m.flags) {
		for _, not := range notCut {
			if flag == not {
				return false
			}
		}
	}
	return true
}

// keepUnaccounted marks a mapping that the kernel does not account for (no VM_ACCOUNT) with VM_NORESERVE.
// CRIU maps private memory writable before it restores it (criu/mem.c, premap_private_vma), and the kernel
// would then account for all of it: MariaDB reserves 8 TiB without access, more than any machine has.
func (m *mapping) keepUnaccounted() {
	flags := strings.Fields(m.flags)
	if !slices.Contains(flags, "ac") && !slices.Contains(flags, "nr") {
		m.flags += " nr"
	}
}

// isKernels reports whether a mapping with this name is the kernel's: [vdso], [vvar], [vsyscall],
// [uprobes].
func isKernels(name string) bool { return strings.HasPrefix(name, "[v") || name == "[uprobes]" }

// cutTable makes the table that CRIU gets for a process, and lists what was cut off. If used, it also cuts
// mappings that have pages.
func cutTable(pid int, pageSize uint64, used bool) (table []byte, cut []PageRange, err error) {
	space, err := kernel.OpenAddressSpace(pid)
	if err != nil {
		return nil, nil, err
	}
	defer space.Close()
	pages, err := space.OpenPagemap()
	if err != nil {
		return nil, nil, err
	}
	defer pages.Close()
	file, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	all, err := readMappings(file)
	if err != nil {
		return nil, nil, fmt.Errorf("read the mappings of process %d: %w", pid, err)
	}
	var out bytes.Buffer
	for _, m := range all {
		if m.canCut() {
			m.keepUnaccounted()
			whole, err := m.mustStay(pages, used)
			if err != nil {
				return nil, nil, err
			}
			if first := m.start + pageSize; !whole {
				cut = append(cut, PageRange{Start: first, Pages: (m.end - first) / pageSize})
				m.end = first
			}
		}
		m.write(&out)
	}
	return out.Bytes(), cut, nil
}

// mustStay reports whether CRIU must examine a mapping: because of guards (MADV_GUARD_INSTALL), which are
// in the images only if CRIU looks for them, or because of its pages.
func (m mapping) mustStay(pages *kernel.Pagemap, used bool) (bool, error) {
	if guarded, err := pages.Guarded(m.start, m.end); guarded || err != nil || used {
		return guarded, err
	}
	found, _, err := pages.Anonymous(m.start, m.end)
	return len(found) > 0, err
}
