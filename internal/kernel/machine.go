package kernel

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine has the facts that must be compared before a process moves from one node to another.
type Machine struct {
	Architecture         string   `json:"architecture"` // as in GOARCH
	CPUModel             string   `json:"cpu_model"`
	CPUFeatures          []string `json:"cpu_features"` // sorted, as in /proc/cpuinfo
	KernelRelease        string   `json:"kernel_release"`
	PageSizeBytes        int      `json:"page_size_bytes"`
	MemoryTotalBytes     int64    `json:"memory_total_bytes"`
	MemoryAvailableBytes int64    `json:"memory_available_bytes"`
}

// ReadMachine reads the facts of the machine this process runs on.
func ReadMachine() (Machine, error) {
	m := Machine{Architecture: runtime.GOARCH, PageSizeBytes: os.Getpagesize()}
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		return Machine{}, fmt.Errorf("read the kernel's version: %w", err)
	}
	m.KernelRelease = unix.ByteSliceToString(uname.Release[:])
	cpu, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return Machine{}, fmt.Errorf("read the CPU's features: %w", err)
	}
	defer cpu.Close()
	if m.CPUModel, m.CPUFeatures, err = parseCPU(cpu); err != nil {
		return Machine{}, fmt.Errorf("read the CPU's features: %w", err)
	}
	m.MemoryTotalBytes, m.MemoryAvailableBytes, err = readMemory()
	return m, err
}

// BootID returns an ID that differs after each boot of the machine (random(4), boot_id).
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the id of this boot: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}

// parseCPU reads /proc/cpuinfo. A feature counts only if every processor has it: a process may run
// on any of them.
func parseCPU(r io.Reader) (model string, features []string, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	first := true
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		switch strings.TrimSpace(key) {
		case "model name":
			model = strings.TrimSpace(value)
		case "flags", "Features": // x86, arm64
			these := strings.Fields(value)
			slices.Sort(these)
			if first {
				features, first = slices.Compact(these), false
				continue
			}
			features = slices.DeleteFunc(features, func(f string) bool {
				_, ok := slices.BinarySearch(these, f)
				return !ok
			})
		}
	}
	return model, features, lines.Err()
}

// x86Instructions are the feature names of /proc/cpuinfo that stand for instructions or behaviour that a
// program can use, besides those with the prefixes below. All others (mitigations, virtualisation, power,
// topology) do not matter to a process that moves. Source of the names: arch/x86/include/asm/cpufeatures.h.
const x86Instructions = " fpu tsc cx8 cmov clflush mmx fxsr ht syscall mmxext fxsr_opt rdtscp lm 3dnowext " +
	"3dnow" +
	" pni pclmulqdq monitor ssse3 fma cx16 movbe popcnt aes xsave f16c rdrand lahf_lm abm misalignsse " +
	"3dnowprefetch" +
	" xop fma4 tbm monitorx mwaitx fsgsbase bmi1 hle bmi2 erms rtm mpx rdseed adx clflushopt clwb " +
	"xsaveopt xsavec" +
	" xgetbv1 clzero rdpid rdpru pku ospke gfni vaes vpclmulqdq waitpkg cldemote movdiri movdir64b " +
	"serialize fsrm" +
	" tsxldtrk enqcmd user_shstk lwp la57 cmpccxadd fzrm fsrs fsrc prefetchi raoint "

var x86Prefixes = [...]string{"sse", "avx", "amx", "sha", "sm3", "sm4", "apx"}

// usable reports whether a program can see and use a CPU feature.
func usable(architecture, feature string) bool {
	if architecture != "amd64" && architecture != "386" {
		return true // elsewhere the list is that of the hardware capabilities shown to programs
	}
	if strings.Contains(x86Instructions, " "+feature+" ") {
		return true
	}
	return slices.ContainsFunc(x86Prefixes[:], func(p string) bool { return strings.HasPrefix(feature, p) })
}

// MissingFeatures lists the CPU features of source that target lacks and that a program can see and use.
func MissingFeatures(source, target Machine) []string {
	var missing []string
	for _, f := range source.CPUFeatures {
		if usable(source.Architecture, f) && !slices.Contains(target.CPUFeatures, f) {
			missing = append(missing, f)
		}
	}
	return missing
}

// MemoryAvailable returns the kernel's estimate of memory that can be used without swapping, in bytes.
func MemoryAvailable() (int64, error) {
	_, available, err := readMemory()
	return available, err
}

func readMemory() (total, available int64, err error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0, fmt.Errorf("read available memory: %w", err)
	}
	return parseMemory(string(data))
}

// parseMemory reads /proc/meminfo, whose numbers are in KiB (proc_meminfo(5)).
func parseMemory(text string) (total, available int64, err error) {
	found := map[string]int64{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		if fields := strings.Fields(value); len(fields) == 2 && fields[1] == "kB" {
			if n, err := strconv.ParseInt(fields[0], 10, 64); err == nil && n >= 0 && n < 1<<50 {
				found[key] = n << 10
			}
		}
	}
	total, hasTotal := found["MemTotal"]
	available, hasAvailable := found["MemAvailable"]
	if !hasTotal || !hasAvailable {
		return 0, 0, errors.New("read available memory: /proc/meminfo has no MemTotal and MemAvailable")
	}
	return total, available, nil
}
