package criu

import (
	"strings"
	"testing"
)

func TestExplain(t *testing.T) {
	for name, c := range map[string]struct{ log, want string }{
		"a dump, with times": {`(00.000011) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted
(00.011200) Warn  (criu/kerndat.c:1103): something
(00.013300) Error (criu/sk-inet.c:211): inet: Unsupported proto 262 for socket a1481
(00.013400) Error (criu/cr-dump.c:1584): Dump files (pid: 32516) failed with -1
(00.013500) Error (criu/cr-dump.c:1975): Dumping FAILED.
`, "inet: Unsupported proto 262 for socket a1481"},
		"a restore, with the pids of tasks": {`(00.000011) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted
(00.020000)      1: Error (criu/files-reg.c:2143): Can't open file data/x on restore: No such file or directory
(00.021000) Error (criu/cr-restore.c:1480): 4711 exited, status=1
(00.021100) Error (criu/cr-restore.c:2557): Restoring FAILED.
`, "Can't open file data/x on restore: No such file or directory"},
		"the restorer": {`pie: 12: Error (criu/pie/restorer.c:2185): Unable to create a thread: -17
pie: 12: Error (criu/pie/restorer.c:2332): Restorer fail 12
Error (criu/cr-restore.c:2331): Restoring FAILED.
Error (criu/cgroup.c:2055): cg: cgroupd: recv req error: No such file or directory
`, "Unable to create a thread: -17"},
		"consequences only": {"Error (criu/cr-dump.c:1975): Dumping FAILED.\n", "Dumping FAILED."},
		"harmless": {"Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: " +
			"Operation not permitted\n", ""},
		"empty": {"", ""},
	} {
		if got := Explain(c.log); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func FuzzExplain(f *testing.F) {
	f.Add("(00.020000)      1: Error (criu/files-reg.c:2143): Can't open\nError (): \n")
	f.Fuzz(func(t *testing.T, log string) {
		if got := Explain(log); strings.Contains(got, "\n") || len(got) > len(log)+8 {
			t.Errorf("%q", got)
		}
	})
}
