package engines

import (
	"context"
	"testing"

	"github.com/godwit/godwit/internal/lab/labtest"
)

// slowly allows the processes with these names a twentieth of a processor, with all that they start.
const slowly = `d=$(findmnt -nt cgroup -O cpu -o TARGET | head -n 1)
	if [ "$d" ]; then
		mkdir $d/slow && echo 100000 >$d/slow/cpu.cfs_period_us && echo 5000 >$d/slow/cpu.cfs_quota_us
	else
		d=$(findmnt -nt cgroup2 -o TARGET | head -n 1)
		echo +cpu >$d/cgroup.subtree_control; mkdir $d/slow && echo '5000 100000' >$d/slow/cpu.max
	fi
	for pid in $(pidof "$@"); do echo $pid >$d/slow/cgroup.procs; done`

// quickly undoes slowly.
const quickly = `d=$(findmnt -nt cgroup -O cpu -o TARGET | head -n 1)
	[ "$d" ] || d=$(findmnt -nt cgroup2 -o TARGET | head -n 1)
	for pid in $(cat $d/slow/cgroup.procs); do echo $pid >$d/cgroup.procs; done; rmdir $d/slow`

// TestDockerSlow: a Docker with a twentieth of a processor is slow, and a container arrives and leaves
// nevertheless.
func TestDockerSlow(t *testing.T) {
	name := docker(t, nil, count)
	t.Cleanup(func() {
		if !labtest.Within(patience, func() bool { // this includes processes that it starts meanwhile
			_, err := world.lab.Exec(context.Background(), "b", "sh", "-c", quickly)
			return err == nil
		}) {
			t.Error("the Docker of node b stays slow")
		}
	})
	in(t, "b", "sh", "-c", slowly, "sh", "dockerd", "containerd")
	migrate(t, name, "a", "b", "cold")
	migrate(t, name, "b", "a", "cold")
}
