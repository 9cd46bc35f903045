package image

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestOriginTellsNoPassword: another node may have caused the unencrypted connection to a registry.
func TestOriginTellsNoPassword(t *testing.T) {
	var asked, told atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Header.Get("Authorization") != "" {
			told.Add(1)
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	login := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host,
		base64.StdEncoding.EncodeToString([]byte("me:secret")))
	check(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(login), 0o600))
	digest := digestOf([]byte("layer"))
	origin := Origin{Repository: host + "/app", PlainHTTP: true,
		Layers: []OriginBlob{{DiffID: digest, Digest: digest, Size: 5}}}
	if _, err := origin.Open(t.Context(), digest); err == nil {
		t.Error("the registry gives what it does not give")
	}
	if asked.Load() == 0 || told.Load() > 0 {
		t.Errorf("asked %d times, told a password %d times", asked.Load(), told.Load())
	}
}
