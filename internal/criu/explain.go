package criu

import (
	"os"
	"regexp"
	"strings"
)

// maxLog bounds how much of a log is read. Only in a verbose log are the first errors near the end.
const maxLog = 4 << 20

// explainFile explains a log file; "" if it cannot be read.
func explainFile(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return Explain(string(data[:min(len(data), maxLog)]))
}

var (
	// logLine strips "(00.012345) ", "pie: ", " 1: " and "Error (criu/x.c:12): " from a message.
	logLine = regexp.MustCompile(`^(?:\(\d+\.\d+\)\s*)?(?:pie:\s*)?(?:\d+:\s*)?Error \([^)]*\):\s*(.*)$`)
	// consequence matches messages that say that something failed, not why, and harmless messages.
	consequence = regexp.MustCompile(`^(rlimit: Can't setup RLIMIT_NOFILE|Dumping FAILED|Restoring FAILED|` +
		`Dump (files|mappings|core|fsnotify|xattr).*failed|Killing processes because of failure|` +
		`RPC client reported script error|Post dump script|Aborting restore|\d+ (exited|killed|stopped)|` +
		`Unable to wait|Restorer fail|cg: cgroupd: recv req error|Can't dump task|ns/.* (exited|failed)|` +
		`.*\bfailed with (-1|1)$|Unexpected exit code)`)
)

// Explain finds the first real cause in a CRIU log: the first error that is neither known to be harmless
// nor the mere consequence of another one, and up to two errors that follow it. It returns "" if there is
// no error.
func Explain(log string) string {
	var causes, others []string
	for line := range strings.Lines(log) {
		m := logLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || m[1] == "" {
			continue
		}
		if strings.HasPrefix(m[1], "rlimit: Can't setup RLIMIT_NOFILE") {
			continue // harmless: CRIU continues with its present limit
		}
		if consequence.MatchString(m[1]) {
			others = append(others, m[1])
			continue
		}
		causes = append(causes, m[1])
	}
	if len(causes) == 0 {
		causes = others
	}
	return strings.Join(causes[:min(len(causes), 3)], "; ")
}
