package push

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/godwit/godwit/internal/memory"
)

// filling is an engine that reports what a function does.
type filling func() (memory.FillReport, error)

func (f filling) Memory(context.Context, string) (memory.FillReport, error) { return f() }

// TestAwaitFilledEnds: memory that comes slowly is waited for, and memory that does not come is told.
func TestAwaitFilledEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		here := filling(func() (memory.FillReport, error) {
			if time.Since(began) < 10*time.Minute {
				return memory.FillReport{State: memory.Filling, Pages: 10, LeftPages: 10}, nil
			}
			return memory.FillReport{State: memory.Filled, Pages: 10}, nil
		})
		if err := AwaitFilled(t.Context(), here, "c", "web"); err != nil {
			t.Errorf("memory that is here: %v", err)
		}
		began = time.Now()
		slow := filling(func() (memory.FillReport, error) {
			left := 10 - int64(time.Since(began)/time.Minute)
			if left == 0 {
				return memory.FillReport{State: memory.Filled, Pages: 10}, nil
			}
			return memory.FillReport{State: memory.Filling, Pages: 10, LeftPages: left, RemoteLeft: left}, nil
		})
		if err := AwaitFilled(t.Context(), slow, "c", "web"); err != nil ||
			time.Since(began) < 10*time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		stuck := filling(func() (memory.FillReport, error) {
			return memory.FillReport{State: memory.Filling, Pages: 43, LeftPages: 25, RemoteLeft: 25}, nil
		})
		if err := AwaitFilled(t.Context(), stuck, "c", "web"); err == nil ||
			!strings.Contains(err.Error(), "memory of web from its last move: 25 of 43 pages are still") {
			t.Errorf("memory that does not come: %v", err)
		}
	})
}
