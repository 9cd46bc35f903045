package criu

import "testing"

func TestWarm(t *testing.T) {
	tool, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	if err := tool.Warm(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := (Tool{Path: "/bin/false"}).Warm(t.Context()); err == nil {
		t.Error("a program that is not CRIU was warmed")
	}
}
