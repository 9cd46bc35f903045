package nsstate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// legacy is one protocol of iptables' older interface, from before nftables
// (include/uapi/linux/netfilter_ipv4/ip_tables.h and netfilter_ipv6/ip6_tables.h).
type legacy struct {
	program string
	names   string // file that lists the existing tables
	family  int
	level   int // of socket options
	layout  layout
}

// layout describes the beginning of a table's entry: struct ipt_entry or ip6t_entry.
type layout struct {
	header  int // bytes before its matches
	offsets int // offset of target_offset, which is followed by next_offset
}

var (
	layoutIPv4 = layout{header: 112, offsets: 88}
	layoutIPv6 = layout{header: 168, offsets: 140}
	legacies   = []legacy{
		{"iptables", "/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.SOL_IP, layoutIPv4},
		{"ip6tables", "/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, layoutIPv6},
	}
)

const (
	getInfo    = 64 // IPT_SO_GET_INFO
	getEntries = 65 // IPT_SO_GET_ENTRIES
	infoSize   = 84 // struct ipt_getinfo
	maxTable   = 4 << 20
	maxNames   = 4096
)

// legacyTables finds tables with rules or policies in the calling thread's namespace.
func legacyTables() ([]Finding, error) {
	var found []Finding
	for _, one := range legacies {
		names, err := readNames(one.names)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			engines, err := one.isEngines(name)
			for tries := 0; errors.Is(err, unix.EAGAIN) && tries < maxTries; tries++ {
				engines, err = one.isEngines(name) // its rules have just changed
			}
			if err != nil {
				return nil, fmt.Errorf("%s, table %s: %w", one.program, name, err)
			}
			if !engines {
				found = append(found, made(filterRules, one.program+" table "+name))
			}
		}
	}
	arp, err := readNames("/proc/thread-self/net/arp_tables_names")
	for _, name := range arp {
		found = append(found, made(filterRules, "arptables table "+name))
	}
	return found, err
}

// readNames reads the names of the existing tables; none if the kernel has no such tables.
func readNames(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(data) > maxNames {
		return nil, fmt.Errorf("%s has %d bytes: at most %d are read", path, len(data), maxNames)
	}
	return strings.Fields(string(data)), nil
}

// isEngines reports whether a table has no rules but those of Docker's resolver, and all policies accept.
func (l legacy) isEngines(name string) (bool, error) {
	fd, err := unix.Socket(l.family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	info := make([]byte, infoSize)
	copy(info[:31], name)
	if _, err := kernel.SocketOption(fd, l.level, getInfo, info); err != nil {
		return false, err
	}
	size := binary.NativeEndian.Uint32(info[80:])
	if size > maxTable {
		return false, nil // only a container makes such a table
	}
	entries := make([]byte, 40+int(size)) // struct ipt_get_entries: a name, a size, padding, and the entries
	copy(entries[:31], name)
	binary.NativeEndian.PutUint32(entries[32:], size)
	if _, err := kernel.SocketOption(fd, l.level, getEntries, entries); err != nil {
		return false, err
	}
	return l.layout.onlyResolver(entries[40:], name), nil
}

// target is the target of an entry: struct xt_entry_target, and the verdict of a standard target.
type target struct {
	name    string
	verdict int32
}

// Names and verdicts of standard targets (include/uapi/linux/netfilter/x_tables.h).
const (
	errorTarget = "ERROR"
	accept      = -2 // -NF_ACCEPT - 1
	goesBack    = -5 // XT_RETURN
)

// ends reports whether an unconditional target is the policy or the end of a chain without rules.
func (t target) ends(chain string) bool {
	return t.name == "" && (t.verdict == accept || t.verdict == goesBack && chain != "")
}

func (t target) jumps() bool { return t.name == "" && t.verdict >= 0 }

// onlyResolver reports whether entries are only the policies of chains and rules of Docker's resolver.
func (l layout) onlyResolver(entries []byte, table string) bool {
	chain := "" // a built-in chain
	for len(entries) > 0 {
		entry, rest, ok := l.cut(entries)
		if !ok {
			return false
		}
		at := int(binary.NativeEndian.Uint16(entry[l.offsets:]))
		does, ok := readTarget(entry[at:])
		switch {
		case !ok:
			return false
		case does.name == errorTarget: // the beginning of a chain, or the end of the table
			if chain = chainName(entry[at:]); chain != errorTarget && !resolves(table, chain) {
				return false
			}
		case l.unconditional(entry, at) && does.ends(chain):
		case table == "nat" && l.forResolver(entry) && (chain != "" || does.jumps()):
		default:
			return false
		}
		entries = rest
	}
	return true
}

func resolves(table, chain string) bool {
	return table == "nat" && (chain == resolverChains[0] || chain == resolverChains[1])
}

// cut splits the first entry off.
func (l layout) cut(entries []byte) (entry, rest []byte, ok bool) {
	if len(entries) < l.header {
		return nil, nil, false
	}
	at := int(binary.NativeEndian.Uint16(entries[l.offsets:]))
	next := int(binary.NativeEndian.Uint16(entries[l.offsets+2:]))
	if at < l.header || next < at || next > len(entries) || next == 0 {
		return nil, nil, false
	}
	return entries[:next], entries[next:], true
}

// readTarget reads struct xt_standard_target; other targets begin like it.
func readTarget(data []byte) (target, bool) {
	const name, verdict = 2, 32
	if len(data) < verdict {
		return target{}, false
	}
	does := target{name: cString(data[name : name+29])}
	if does.name == "" {
		if len(data) < verdict+4 {
			return target{}, false
		}
		does.verdict = int32(binary.NativeEndian.Uint32(data[verdict:]))
	}
	return does, true
}

// chainName returns the chain's name in struct xt_error_target.
func chainName(data []byte) string {
	const name = 32
	return cString(data[min(name, len(data)):min(name+30, len(data))])
}

func cString(data []byte) string {
	text, _, _ := bytes.Cut(data, []byte{0})
	return string(text)
}

// unconditional reports whether an entry applies to every packet: it has no matches, and its struct ipt_ip or
// ip6t_ip6 is zero.
func (l layout) unconditional(entry []byte, target int) bool {
	const afterwards = 4 // nfcache
	for _, b := range entry[:l.offsets-afterwards] {
		if b != 0 {
			return false
		}
	}
	return target == l.header
}

// forResolver reports whether an entry applies to packets from or to Docker's resolver: struct ipt_ip begins
// with source, destination, and the masks of both.
func (l layout) forResolver(entry []byte) bool {
	if l != layoutIPv4 {
		return false
	}
	all := []byte{255, 255, 255, 255}
	from := bytes.Equal(entry[0:4], resolver) && bytes.Equal(entry[8:12], all)
	to := bytes.Equal(entry[4:8], resolver) && bytes.Equal(entry[12:16], all)
	const inverted = 83 // invflags
	return (from || to) && entry[inverted] == 0
}
