package oci

import (
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// TestBindObstacle checks that the advised flag exists, and that following the advice removes the obstacle.
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
