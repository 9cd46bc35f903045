package guard_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/guard"
)

func TestDoReturnsAPanicAsAnError(t *testing.T) {
	err := guard.Do(func() error {
		var none []int
		return fmt.Errorf("not reached: %d", none[1])
	})
	var p *guard.Panic
	if !errors.As(err, &p) || !strings.Contains(err.Error(), "index out of range") {
		t.Fatalf("error %v, want the panic", err)
	}
	if stack := guard.Stack(fmt.Errorf("step: %w", err)); !strings.Contains(stack,
		"TestDoReturnsAPanicAsAnError") {
		t.Errorf("the stack does not name the function that panicked:\n%s", stack)
	}
}

func TestDoReturnsTheError(t *testing.T) {
	want := errors.New("failed")
	if err := guard.Do(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
	if err := guard.Do(func() error { return nil }); err != nil || guard.Stack(err) != "" {
		t.Errorf("error %v for a call that succeeded", err)
	}
}
