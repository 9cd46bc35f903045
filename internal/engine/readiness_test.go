package engine

import "testing"

func TestTooOld(t *testing.T) {
	for version, old := range map[string]bool{
		"19.03.15": true, "20.9": true, "20.10": false, "20.10.24+dfsg1": false, "26.1.5": false,
		"v28.0.0-rc.1": false, "3": true,
		"20.8~rc1": true, "": false, "dev": false, "library-import": false, "99999999999999999999.1": false,
		"-1": false,
	} {
		if got := TooOld("Docker", version, "20.10"); (len(got) > 0) != old {
			t.Errorf("%q: %+v", version, got)
		}
	}
}
