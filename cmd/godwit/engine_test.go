package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/godwit/godwit/internal/engine/containerd"
	"github.com/godwit/godwit/internal/engine/docker"
)

// TestEngineRemoveRefused: nothing is removed, not even networks, as long as a container needs godwit-runc.
func TestEngineRemoveRefused(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	var removed atomic.Bool
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodDelete:
			removed.Store(true)
		case strings.HasSuffix(r.URL.Path, "/networks"):
			fmt.Fprint(w,
				`[{"Name":"birds","Id":"1","Driver":"bridge","IPAM":{"Config":[{"Subnet":"10.89.0.0/16"}]}}]`)
		case strings.HasSuffix(r.URL.Path, "/containers/json"):
			fmt.Fprint(w, `[{"Id":"3","Names":["/crow"],"State":"exited"}]`)
		case strings.HasSuffix(r.URL.Path, "/containers/3/json"):
			fmt.Fprint(w, `{"Id":"3","Name":"/crow","HostConfig":{"Runtime":"godwit"}}`)
		default:
			fmt.Fprint(w, "{}")
		}
	})}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	cmd := newEngineRemoveCommand()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs([]string{"docker", "--docker-socket", filepath.Join(dir, "s"), "--config",
		filepath.Join(dir, "daemon.json"), "--pidfile", filepath.Join(dir, "pid")})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "crow") ||
		removed.Load() {
		t.Errorf("%v; removed: %v", err, removed.Load())
	}
}

// TestEngineSetupNotRunning: a Docker that does not run knows nothing yet.
func TestEngineSetupNotRunning(t *testing.T) {
	dir := t.TempDir()
	cmd := newEngineSetupCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"docker", "--docker-socket", filepath.Join(dir, "s"), "--config",
		filepath.Join(dir, "daemon.json"), "--pidfile", filepath.Join(dir, "pid")})
	if err := cmd.ExecuteContext(t.Context()); err != nil ||
		!strings.HasPrefix(out.String(),
			"Docker does not run here; when it is started it will know runtime godwit: ") {
		t.Errorf("%v; it says %q", err, out.String())
	}
}

// TestCheckOthers: a subnet of another engine is refused; an engine that does not answer is reported.
func TestCheckOthers(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var broken atomic.Bool
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case broken.Load():
			w.WriteHeader(http.StatusInternalServerError)
		case strings.HasSuffix(r.URL.Path, "/networks"):
			fmt.Fprint(w,
				`[{"Name":"birds","Id":"1","Driver":"bridge","IPAM":{"Config":[{"Subnet":"10.89.0.0/16"}]}}]`)
		default:
			fmt.Fprint(w, "{}")
		}
	})}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	t.Setenv("PATH", t.TempDir()) // there is no Podman
	engines := engineSettings{docker: docker.DaemonConfig{Socket: socket}}
	var said bytes.Buffer
	check := func() error {
		return engines.checkOthers(t.Context(), containerd.Name, t.TempDir(),
			netip.MustParsePrefix("10.89.0.0/16"), &said)
	}
	if err := check(); err == nil || !strings.Contains(err.Error(), "network birds of Docker") ||
		said.Len() > 0 {
		t.Errorf("%v; %s", err, &said)
	}
	broken.Store(true)
	if err := check(); err != nil || !strings.Contains(said.String(), "Docker") {
		t.Errorf("%v; %s", err, &said)
	}
}
