package embedded

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// stuckWithin makes a connection whose reader never reads, leaves it to the kernel, and reports that.
const stuckWithin = `nc -l -p 9 -e sleep 1000 &
until netstat -ltn | grep -q ':9 '; do usleep 10000; done
nc 127.0.0.1 9 < /dev/zero &
until netstat -tn | awk '$5 ~ /:9$/ && $3 > 0' | grep -q ESTABLISHED; do usleep 10000; done
kill -9 $!
until netstat -tn | grep -q FIN_WAIT1; do usleep 10000; done
echo left
exec sleep 1000`

// TestStuckWithinIsGivenUp checks that a connection within the container that never ends delays one freeze,
// and not the next.
func TestStuckWithinIsGivenUp(t *testing.T) {
	n := newTestNode(t)
	d := n.start(definition(t, "sh", "-c", stuckWithin))
	for until := time.Now().Add(10 * time.Second); !strings.Contains(n.output(d.ID),
		"left"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("no connection is stuck: %s", n.output(d.ID))
		}
	}
	departing, err := n.PrepareDump(t.Context(), d.ID, engine.DumpOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer departing.Close()
	refused := 0
	for err = engine.ErrUnsettled; errors.Is(err, engine.ErrUnsettled); refused++ {
		if err = departing.Settle(t.Context()); err == nil {
			_, err = departing.Freeze(t.Context())
		}
	}
	if refused--; err != nil || refused != 1 {
		t.Errorf("%d freezes were refused, then: %v; want 1", refused, err)
	}
}
