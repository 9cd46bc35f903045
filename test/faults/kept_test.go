package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/filestest"
	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/migration"
)

// TestBrokenCopiesGoOn breaks migrations in all ways while the files of a large volume are sent. The next
// attempt must send only the missing data, and the volume must be the same to the byte, whatever the
// container did between the attempts.
func TestBrokenCopiesGoOn(t *testing.T) {
	t.Parallel()
	w := newNodesOf(t, lab.Config{}, "8s") // a busy machine should not look like a lost link
	slow := lab.Link{BandwidthBitsPerSecond: 150_000_000, RTT: 2 * time.Millisecond}
	if err := w.lab.SetLink("a", "b", slow); err != nil {
		t.Fatal(err)
	}
	w.loadRedis(t, "a")
	w.id = strings.TrimSpace(w.must(t, "a", "run", "-d", "--name", container, "-v", "data:/data",
		"--entrypoint", "/bin/sh", "redis", "-c",
		`cd /data; test -e done || { mkdir -p small/more; for i in $(seq 500); do echo $i >small/more/$i; done; head -c 30000000 /dev/urandom >a
		for i in 1 2 3; do head -c 4000000 /dev/urandom >small/$i; done; ln small/1 linked; ln -s /etc/passwd out; mkfifo fifo; touch done; }
		while :; do sleep 0.1; done`))
	eventually(t, "the volume to be filled", func() error {
		_, err := os.Lstat(filepath.Join(w.volume(t, "a"), "done"))
		return err
	})
	const all = 42_000_000
	cut := func(t *testing.T, from, to, id string) {
		w.linkDown(t)
		w.waitNoticed(t, from, id)
		w.linkUp(t)
	}
	kill := func(t *testing.T, node string) {
		w.killAgent(t, node)
		w.reviveAgents(t)
	}
	for _, c := range []struct {
		name   string
		mode   migration.Mode
		broken func(t *testing.T, from, to, id string)
		change string // of the volume, between the attempts
		more   int64  // additional bytes sent for it
		long   bool   // only with --long
	}{
		{"link lost", migration.PreCopy, cut, "", 0, true},
		{"target killed", migration.PreCopy, func(t *testing.T, _, to, _ string) { kill(t, to) }, "", 0,
			false},
		{"source killed", migration.Restart, func(t *testing.T, from, _, _ string) { kill(t, from) }, "",
			0, true},
		{"cancelled, and changed", migration.PreCopy,
			func(t *testing.T, from, _, id string) { w.cancel(t, from, id) },
			`printf changed | dd of=/data/a bs=1 seek=100000 conv=notrunc; rm -r /data/small/more; mv /data/small/2 /data/b
			rm /data/small/3; mkdir /data/small/3; echo x >/data/small/3/x; ln -f /data/a /data/linked; chmod 600 /data/small/1`, 5_000_000, false},
		{"in the freeze", migration.Cold, cut, "", 0, true},
	} {
		if c.long && testing.Short() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			w.meet(t)
			w.mode = c.mode
			from, to := w.at, other(w.at)
			id := w.begin(t, from, to)
			eventually(t, "half of the volume to come", func() error {
				if size, err := files.TreeSize(t.Context(), files.Tree{Path: w.volume(t, to)}); err != nil ||
					size.Bytes < all/2 {
					return fmt.Errorf("%+v, %v", size, err)
				}
				return nil
			})
			c.broken(t, from, to, id)
			w.settle(t, id)
			w.meet(t)
			if w.at != from {
				t.Fatalf("it has moved to %s: nothing broke off", w.at)
			}
			kept := w.kept(t, to, from)
			if c.change != "" {
				w.must(t, from, "exec", container, "sh", "-c", c.change)
			}
			w.arrivesWith(t, kept, all-kept+2_000_000+c.more)
		})
	}
	w.keptIsGivenUp(t, all)
	w.must(t, w.at, "rm", "--force", container)
}

// volume returns the directory of the volume on a node.
func (w *world) volume(t *testing.T, node string) string {
	t.Helper()
	root, err := w.lab.Root(node)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, volumeData)
}

const volumeData = "var/lib/godwit/volumes/data"

// lookAtVolume takes a snapshot without access times, which a look from another mount namespace changes.
func (w *world) lookAtVolume(t *testing.T, node string) filestest.Snapshot {
	t.Helper()
	found, err := filestest.Take(w.volume(t, node), filestest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for path, line := range found {
		found[path] = accessed.ReplaceAllString(line, "")
	}
	return found
}

var accessed = regexp.MustCompile(` atime=\S*`)

// keptCopies lists a node's copies from broken migrations.
func (w *world) keptCopies(t *testing.T, node string) (list []migration.Stage) {
	t.Helper()
	reply, err := w.agents[node].Stages(t.Context(), &api.StagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range reply.StagesJson {
		var one migration.Stage
		if err := json.Unmarshal(document, &one); err != nil {
			t.Fatal(err)
		}
		if one.Kind == migration.BrokenCopy {
			list = append(list, one)
		}
	}
	return list
}

// kept checks that a node has kept the data that came from the other one, in a hidden place, and returns
// its size.
func (w *world) kept(t *testing.T, node, from string) int64 {
	t.Helper()
	list := w.keptCopies(t, node)
	if len(list) != 1 || list[0].Container != container || list[0].Source != from || list[0].Target != node ||
		list[0].Until.IsZero() {
		t.Fatalf("kept: %+v", list)
	}
	if list[0].DiskBytes < 10_000_000 {
		t.Errorf("%d bytes are kept", list[0].DiskBytes)
	}
	if _, err := os.Lstat(w.volume(t, node)); err == nil {
		t.Error("the volume is on the target, too")
	}
	if info, err := os.Stat(filepath.Join(w.volume(t, node), "../../kept")); err != nil ||
		info.Mode().Perm() != 0o700 {
		t.Errorf("others may look at what is kept: %v, %v", info, err)
	}
	return list[0].DiskBytes
}

// arrivesWith moves the container, and checks how much of its files was kept, and that at most so much was
// sent.
func (w *world) arrivesWith(t *testing.T, kept, sent int64) {
	t.Helper()
	from, to := w.at, other(w.at)
	want := w.lookAtVolume(t, from)
	id := w.begin(t, from, to)
	w.settle(t, id)
	r, _ := w.report(t, from, id)
	if w.at != to {
		t.Fatalf("it has not moved: %s", *r.Error)
	}
	for _, difference := range filestest.Differences(want, w.lookAtVolume(t, to), 10) {
		t.Error(difference)
	}
	b := r.Bytes
	t.Logf("kept before %d; kept %d, sent %d and %d in the freeze", kept, b.FilesKept, b.FilesPrecopy,
		b.FilesFinal)
	if b.FilesPrecopy+b.FilesFinal > sent || b.FilesKept > kept || b.FilesKept < kept-7_000_000 {
		t.Errorf("of %d bytes %d were kept; %d were sent, at most %d should be", kept, b.FilesKept,
			b.FilesPrecopy+b.FilesFinal, sent)
	}
	if list := w.keptCopies(t, to); len(list) > 0 {
		t.Errorf("still kept: %+v", list)
	}
	if left, err := os.ReadDir(filepath.Join(w.volume(t, to), "../../kept")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// keptIsGivenUp: a user can remove the kept copy, and a node can be told to keep none.
func (w *world) keptIsGivenUp(t *testing.T, all int64) {
	t.Helper()
	w.mode = migration.PreCopy
	breakOff := func() (from, to string) {
		w.meet(t)
		from, to = w.at, other(w.at)
		point := agent.Fault{Side: "source", Step: "rounds", When: "after"}
		w.set(t, from, point, agent.FaultFail)
		id := w.begin(t, from, to)
		w.reach(t, from, point)
		w.settle(t, id)
		return from, to
	}
	from, to := breakOff()
	if kept := w.kept(t, to, from); kept < all*9/10 {
		t.Errorf("%d bytes are kept of %d", kept, all)
	}
	w.must(t, to, "stage", "rm", container, from)
	if list := w.keptCopies(t, to); len(list) > 0 {
		t.Errorf("removed, and still kept: %+v", list)
	}
	w.stopAgent(t, to)
	if err := w.lab.StartAgentWith(t.Context(), to, nil,
		append(w.agentArgs(), "--keep-broken-copies", "0")...); err != nil {
		t.Fatal(err)
	}
	breakOff()
	if list := w.keptCopies(t, to); len(list) > 0 {
		t.Errorf("nothing is to be kept: %+v", list)
	}
	w.arrivesWith(t, 0, all+2_000_000)
}
