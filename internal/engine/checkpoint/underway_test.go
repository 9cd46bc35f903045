package checkpoint

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// TestLockBefore checks that a wait for a lock ends with its context and leaves the lock to others, and
// that a free lock is taken in any case.
func TestLockBefore(t *testing.T) {
	var locks Locks
	ended, end := context.WithCancel(t.Context())
	end()
	unlock, err := locks.LockBefore(ended, "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locks.LockBefore(ended, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("the wait for a lock that is held: %v", err)
	}
	if _, free := locks.TryLock("a"); free {
		t.Error("a lock that is held is free")
	}
	locks.Lock("b")()
	unlock()
	unlock, err = locks.LockBefore(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	var all sync.WaitGroup
	count := 0
	for range 100 {
		all.Go(func() {
			defer locks.Lock("a")()
			count++
		})
		all.Go(func() {
			if unlock, err := locks.LockBefore(t.Context(), "a"); err == nil {
				defer unlock()
				count++
			}
		})
	}
	all.Wait()
	if count != 200 {
		t.Errorf("%d changes, not one after the other", count)
	}
}
