package push

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

// TestFrozenCopyThatRan: no page is taken from processes that have run since they were frozen.
func TestFrozenCopyThatRan(t *testing.T) {
	errRan := errors.New("it has run")
	frozen, err := memory.OpenFrozen([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	defer frozen.Close()
	areas, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	task, address := memory.Task(os.Getpid()), uint64(0)
	if _, err := fmt.Sscanf(string(areas), "%x-", &address); err != nil { // the program itself
		t.Fatal(err)
	}
	remote := []memory.TaskMap{{Task: task, Areas: []memory.Area{{Start: address, Pages: 1}}}}
	for _, has := range []bool{false, true} {
		pages := stayed{copied: Copy{frozen, func() error {
			if has {
				return errRan
			}
			return nil
		}}}
		err := pages.Read(task, address, make([]byte, memory.PageSize()))
		if errors.Is(err, errRan) != has || !has && err != nil {
			t.Errorf("they have run: %t; read: %v", has, err)
		}
		spilled := newTestSpill(t, filepath.Join(t.TempDir(), spillName), &keyKeeper{})
		spilled.Begin(t.Context(), remote, pages.copied)
		<-spilled.written
		if failed := spilled.State() == migration.SpillFailed; failed != has {
			t.Errorf("they have run: %t; on the disk it is %s: %s", has, spilled.State(), spilled.why)
		}
	}
}
