package docker

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestRemoveRoutedNetworks checks that no routed network is removed while a container, running or not, is
// on one of them.
func TestRemoveRoutedNetworks(t *testing.T) {
	var containers atomic.Value
	var removed atomic.Int32
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodDelete:
			removed.Add(1)
			w.WriteHeader(http.StatusNoContent)
		case strings.HasSuffix(r.URL.Path, "/networks"):
			fmt.Fprint(w,
				`[{"Name":"birds","Id":"1","Driver":"bridge","IPAM":{"Config":[{"Subnet":"10.89.0.0/16"}]}},`+
					`{"Name":"fish","Id":"2","Driver":"bridge","IPAM":{"Config":[{"Subnet":"10.90.0.0/16"}]}}]`)
		case strings.HasSuffix(r.URL.Path, "/containers/json") && r.URL.Query().Get("all") == "1":
			fmt.Fprint(w, containers.Load())
		default:
			fmt.Fprint(w, "{}")
		}
	})}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	for told, stay := range map[string]bool{
		`[{"Id":"3","Names":["/crow"],"State":"exited","NetworkSettings":{"Networks":{"fish":{"NetworkID":"2"}}}}]`: true,
		`[{"Id":"3","Names":["/crow"],"State":"created","HostConfig":{"NetworkMode":"fish"}}]`:                      true,
		`[{"Id":"3","Names":["/crow"],"State":"running","NetworkSettings":{"Networks":{"bridge":{}}}}]`:             false,
	} {
		containers.Store(told)
		removed.Store(0)
		err := e.RemoveRoutedNetworks(t.Context())
		if stay && (err == nil || !strings.Contains(err.Error(), "fish: crow") || removed.Load() > 0) ||
			!stay && (err != nil || removed.Load() != 2) {
			t.Errorf("%s: %v, %d were removed", told, err, removed.Load())
		}
	}
}
