package lxc

import "testing"

func TestCause(t *testing.T) {
	const log = `lxc-checkpoint one 20261127210349.378 ERROR    criu - ../src/lxc/criu.c:do_restore:1070 - criu process exited 1, output:
it cannot enter the cgroup

lxc-checkpoint one 20261127210349.517 ERROR    lxc_checkpoint - tools/lxc_checkpoint.c:main:203 - Restoring one failed
`
	for text, want := range map[string]string{
		log: "criu - ../src/lxc/criu.c:do_restore:1070 - criu process exited 1, output: it " +
			"cannot enter the cgroup",
		"first\nlast\n": "last",
		"":              "",
	} {
		if got := cause(text); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
