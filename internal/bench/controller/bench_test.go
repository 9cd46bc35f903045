package controller

import (
	"crypto/x509"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/wire/identity"
)

// TestDecisions measures a small cluster: there is a row for each change, and the cluster decides something.
func TestDecisions(t *testing.T) {
	var result Result
	if err := decisions(t.Context(), &result, 40, 400, 3); err != nil {
		t.Fatal(err)
	}
	if len(result.Rows) != 3 {
		t.Fatalf("rows %v", result.Rows)
	}
	for _, one := range result.Rows {
		if one.Value <= 0 || one.Unit != "ms" || one.Asked != askedP99 || one.Met != (one.Value < askedP99) {
			t.Errorf("row %+v", one)
		}
	}
	path := filepath.Join(t.TempDir(), "below", "result.json")
	if err := result.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	var read Result
	if err == nil {
		err = json.Unmarshal(data, &read)
	}
	if err != nil || len(read.Rows) != 3 || read.Rows[0] != result.Rows[0] {
		t.Errorf("%v, %v", read, err)
	}
	var text strings.Builder
	if err := result.WriteText(&text); err != nil || !strings.Contains(text.String(), "less than 100") {
		t.Errorf("%s, %v", text.String(), err)
	}
}

// TestCertificates: the simulated nodes have certificates as real ones.
func TestCertificates(t *testing.T) {
	issuer, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	made, err := issuer.issue("n00007", 254)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(made.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(issuer.certificate)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if peer, err := identity.PeerOf(leaf); err != nil || peer.Name != "n00007" || peer.Number != 254 {
		t.Errorf("%v, %v", peer, err)
	}
}

// TestProcessFigures reads what the kernel says of a process.
func TestProcessFigures(t *testing.T) {
	if bytes, err := residentIn("Name:\tx\nVmRSS:\t   2048 kB\nThreads:\t1\n"); err != nil || bytes != 2<<20 {
		t.Errorf("%g, %v", bytes, err)
	}
	if _, err := residentIn("Name:\tx\n"); err == nil {
		t.Error("a status without memory has some")
	}
	took, err := cpuIn("7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1")
	if err != nil || took != 2*time.Second {
		t.Errorf("%v, %v", took, err)
	}
	for _, bad := range []string{"", "7 (x) S 1 2", "7 (x) S 1 2 3 4 5 6 7 8 9 10 y 50"} {
		if _, err := cpuIn(bad); err == nil {
			t.Errorf("%q has a CPU time", bad)
		}
	}
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cpuIn(string(own)); err != nil {
		t.Error(err)
	}
}

// TestProgramIsMissing: nothing is measured without the program.
func TestProgramIsMissing(t *testing.T) {
	result, err := Run(t.Context(), Config{Program: filepath.Join(t.TempDir(), "none"), Nodes: 1,
		Say: func(string) {}})
	if err == nil || len(result.Rows) > 0 {
		t.Errorf("%v, %v", result, err)
	}
}
