package oci

import (
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// TestBindObstacle: what is advised is a flag that there is, and that is no refusal's subject then.
func TestBindObstacle(t *testing.T) {
	v := engine.Volume{Source: t.TempDir(), Path: "/data"}
	if p, is := BindObstacle(v, "Some"); !is || !strings.Contains(p.Remedy, "--volumes /data=skip") {
		t.Errorf("%+v, %t", p, is)
	}
	v.Stays = true
	if p, is := BindObstacle(v, "Some"); is {
		t.Errorf("%+v", p)
	}
}
