package main

import "testing"

func TestPlainText(t *testing.T) {
	for text, want := range map[string]string{
		"volume data: in use": "volume data: in use",
		`rpc error: code = Unavailable desc = connection error: desc = "transport: Error while dialing: dial tcp 10.77.0.2:7443: connect: connection refused"`: "dial tcp 10.77.0.2:7443: connect: connection refused",
		`node a: connection error: desc = "transport: Error while dialing: dial tcp 10.77.0.1:7443: i/o timeout"`:                                              "node a: dial tcp 10.77.0.1:7443: i/o timeout",
		"rpc error: code = DeadlineExceeded desc = context deadline exceeded":                                                                                  "context deadline exceeded",
	} {
		if got := plainText(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
