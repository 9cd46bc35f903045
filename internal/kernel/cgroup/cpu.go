package cgroup

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/kernel"
)

// cpuPeriod is the period of a group's quota, in microseconds: the kernel's default (sched-bwc.rst).
const cpuPeriod = 100_000

// LimitCPU limits the group to the time of this many processors; 0: no limit. Error: ErrUnsupported when
// the group is in no hierarchy that limits processor time.
func (c *Cgroup) LimitCPU(cpus float64) error {
	quota := int64(math.Round(cpus * cpuPeriod))
	if cpus < 0 || quota > math.MaxInt32*cpuPeriod || cpus > 0 && quota < 1000 {
		return fmt.Errorf("limit of %g processors: must be at least 0.01", cpus)
	}
	for _, dir := range c.dirs {
		v1, v2 := filepath.Join(dir, "cpu.cfs_quota_us"), filepath.Join(dir, "cpu.max")
		switch {
		case exists(v2):
			return limitCPU(v2, "max", quota, " "+strconv.Itoa(cpuPeriod))
		case exists(v1):
			if err := writeFile(filepath.Join(dir, "cpu.cfs_period_us"),
				strconv.Itoa(cpuPeriod)); err != nil {
				return fmt.Errorf("limit the processor time of %s: %w", dir, err)
			}
			return limitCPU(v1, "-1", quota, "")
		}
	}
	return fmt.Errorf("limit the processor time of a container: %w: its cgroup has no cpu controller",
		kernel.ErrUnsupported)
}

func limitCPU(file, none string, quota int64, period string) error {
	value := none
	if quota > 0 {
		value = strconv.FormatInt(quota, 10)
	}
	if err := writeFile(file, value+period); err != nil {
		return fmt.Errorf("limit processor time: %w", err)
	}
	return nil
}

// CPUTime returns the processor time that the group's processes have used.
func (c *Cgroup) CPUTime() (time.Duration, error) {
	for _, dir := range c.dirs {
		// version 1, nanoseconds
		if text, err := os.ReadFile(filepath.Join(dir, "cpuacct.usage")); err == nil {
			used, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			return time.Duration(used), err
		}
	}
	for _, dir := range c.dirs {
		text, err := os.ReadFile(filepath.Join(dir, "cpu.stat"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if digits, found := strings.CutPrefix(line, "usage_usec "); found { // version 2
				used, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
				return time.Duration(used) * time.Microsecond, err
			}
		}
	}
	return 0,
		fmt.Errorf("processor time of a container: %w: its cgroups do not count it", kernel.ErrUnsupported)
}
