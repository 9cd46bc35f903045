package containerd

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
)

// connectedInterfaces returns the interfaces in the network namespace of a process that have routes or IPv6
// addresses. The kernel itself makes other interfaces.
func connectedInterfaces(pid int) (names []string) {
	add := func(name string) {
		if name != "lo" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	eachLine(fmt.Sprintf("/proc/%d/net/route", pid), func(fields []string) {
		if fields[0] != "Iface" { // the heading
			add(fields[0])
		}
	})
	eachLine(fmt.Sprintf("/proc/%d/net/if_inet6", pid), func(fields []string) { add(fields[len(fields)-1]) })
	return names
}

// eachLine passes the fields of each line of a kernel file to a function. A missing file has no lines: the
// process has ended, or there is no IPv6.
func eachLine(path string, tell func(fields []string)) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 0 {
			tell(fields)
		}
	}
}
