package migration

import (
	"slices"
	"strings"
	"testing"
)

func TestVolumeWays(t *testing.T) {
	ways, err := ParseVolumeWays([]string{"cache=skip", "shared", "/a=b=move", "/x,y=shared"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseVolumeWays([]string{"/x,y=shared", "/a=b=move", "shared", "cache=skip"})
	if err != nil || again != ways {
		t.Errorf("in another order: %q, %v; want %q", again, err, ways)
	}
	for _, one := range []struct {
		names []string
		way   VolumeWay
		named bool
	}{
		{[]string{"cache", "/data"}, VolumeSkip, true}, {[]string{"/data", "cache"}, VolumeSkip, true},
		{[]string{"other"}, VolumeShared, false},
		{[]string{"/a=b"}, VolumeMove, true}, {[]string{"/x,y"}, VolumeShared, true},
		{nil, VolumeShared, false},
	} {
		if way, named := ways.For(one.names...); way != one.way || named != one.named {
			t.Errorf("for %v: %s, %v", one.names, way, named)
		}
	}
	if named := ways.Named(); !slices.Equal(named, []string{"/a=b", "/x,y", "cache"}) {
		t.Errorf("named: %v", named)
	}
	if way, named := VolumeWays("").For("data"); way != VolumeMove || named {
		t.Errorf("nothing chosen: %s, %v", way, named)
	}
	for bad, want := range map[string]string{"": "choose one of", "data": "choose one of",
		"data=": "choose one of", "=move": "VOLUME=WAY", "data=copy": "move, shared, skip",
		"x=move\x00x=skip": "VOLUME=WAY"} {
		if ways, err := ParseVolumeWays([]string{bad}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v", bad, ways, err)
		}
	}
	for _, twice := range [][]string{{"move", "skip"}, {"a=move", "a=move"}} {
		if ways, err := ParseVolumeWays(twice); err == nil {
			t.Errorf("%v: %q", twice, ways)
		}
	}
	if ways, err := ParseVolumeWays([]string{strings.Repeat("x", maxVolumeWays) + "=move"}); err == nil {
		t.Errorf("too long: %.20q", ways)
	}
}
