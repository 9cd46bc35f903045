package embedded

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded/output"
)

// pretendedRunc is a runc whose containers are single processes of the node, which end with this exit code
// when their run directories have a file named end.
const pretendedRunc = `#!/bin/sh
while [ "$1" != create ]; do [ "$1" = start ] && exit; shift; done
setsid sh -c 'echo started; until [ -e "%[1]s/end" ]; do sleep 0.01; done; echo ends >&2; exit 7' &
echo $! >"$5"
`

// monitored starts a container, with a runc that is this script.
func monitored(t *testing.T, e *Engine, script string) (container, error) {
	t.Helper()
	place := e.catalog.add(t, "a", record{State: engine.Created})
	must(t, os.MkdirAll(place.private(), 0o700))
	if strings.Contains(script, "%[1]s") {
		script = fmt.Sprintf(script, place.runDir())
	}
	must(t, os.WriteFile(e.processes.runc.path, []byte(script), 0o700))
	err := e.launch(t.Context(), place, job{Attended: true})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		// the directory is gone if the container has ended
		_ = os.WriteFile(place.runDir()+"/end", nil, 0o600)
		must(t, e.settle(ctx, place))
	})
	return place, err
}

// logged returns a container's log.
func logged(t *testing.T, place container) string {
	t.Helper()
	file, err := os.Open(place.log())
	must(t, err)
	defer file.Close()
	var all strings.Builder
	for reader := output.NewReader(file); ; {
		entry, err := reader.Next()
		if err != nil {
			return all.String()
		}
		all.WriteString(entry.Stream + " " + string(entry.Data))
	}
}

// TestMonitor checks that a monitor keeps the output of a container, and records its end.
func TestMonitor(t *testing.T) {
	e := newParts(t)
	place, err := monitored(t, e, pretendedRunc)
	must(t, err)
	ctr, err := e.running(place.id)
	if err != nil || ctr.State != engine.Running || ctr.PID == 0 {
		t.Fatalf("%+v, %v", ctr, err)
	}
	monitor, err := monitorProcess(place)
	if err != nil || !monitor.Alive() {
		t.Fatalf("its monitor: %+v, %v", monitor, err)
	}
	if found, err := findMonitor(place); err != nil || found != monitor {
		t.Errorf("found by its command line: %+v, %v; want %+v", found, err, monitor)
	}
	eventually(t, "its output", func() bool { return durable.Exists(place.log()) })
	must(t, askMonitor(t.Context(), place, opDrain))
	err = askMonitor(t.Context(), place, "dance")
	if err == nil || !strings.Contains(err.Error(), "unknown") {
		t.Errorf("an unknown request: %v", err)
	}
	must(t, os.WriteFile(place.runDir()+"/end", nil, 0o600))
	if code, err := e.Wait(t.Context(), place.id); err != nil || code != 7 {
		t.Errorf("exit code %d, %v", code, err)
	}
	must(t, waitGone(t.Context(), monitor))
	if got := logged(t, place); got != "stdout started\nstderr ends\n" {
		t.Errorf("log %q", got)
	}
	if durable.Exists(place.runDir()) {
		t.Error("the run directory is left")
	}
}

// TestMonitorOfDestroyed checks that the end of a container that is being destroyed is not recorded.
func TestMonitorOfDestroyed(t *testing.T) {
	e := newParts(t)
	place, err := monitored(t, e, pretendedRunc)
	must(t, err)
	monitor, err := monitorProcess(place)
	must(t, err)
	must(t, askMonitor(t.Context(), place, opRetire))
	must(t, os.WriteFile(place.runDir()+"/end", nil, 0o600))
	must(t, waitGone(t.Context(), monitor))
	var was record
	if err := durable.Load(place.record(), &was); err != nil || was.State != engine.Running {
		t.Errorf("%+v, %v", was, err)
	}
}

// TestMonitorFails checks that the reason is known if a container cannot be started, and that it counts as
// not started.
func TestMonitorFails(t *testing.T) {
	for script, want := range map[string]string{
		"#!/bin/sh\necho '{\"level\":\"error\",\"msg\":\"not found\"}' >\"$4\"\nexit 1\n": "not found",
		"#!/bin/sh\nexit 3\n": "exit status 3",
		"#!/bin/sh\nwhile [ $1 != create ]; do shift; done\necho x >$5\n": `"x`,
	} {
		e := newParts(t)
		place, err := monitored(t, e, script)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", script, err)
		}
		var was record
		if err := durable.Load(place.record(), &was); err != nil || was.State != engine.Created {
			t.Errorf("%s: %+v, %v", script, was, err)
		}
	}
}

// TestKilledMonitorsContainer checks that a container whose monitor was killed cannot be moved, and that
// what is left of its session ends.
func TestKilledMonitorsContainer(t *testing.T) {
	e := newParts(t)
	place, err := monitored(t, e, pretendedRunc)
	must(t, err)
	must(t, killMonitor(place))
	eventually(t, "the end of its monitor", func() bool { return len(examineMonitor(place)) == 1 })
	must(t, os.WriteFile(place.runDir()+"/end", nil, 0o600))
	must(t, endSession(t.Context(), place))
	eventually(t, "the end of its process", func() bool {
		_, lives, err := living(place)
		return err == nil && !lives
	})
	ctr, err := e.inspect(place.id)
	if err != nil || ctr.State != engine.Exited || ctr.ExitCode != exitUnknown {
		t.Errorf("%+v, %v", ctr, err)
	}
}
