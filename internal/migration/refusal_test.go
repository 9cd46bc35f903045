package migration

import "testing"

// TestRefusal: a single problem is the whole text; of several, the text names the first and their number.
func TestRefusal(t *testing.T) {
	memory, disk := Problem{What: "memory", Why: "too little"}, Problem{What: "disk", Why: "full"}
	for want, problems := range map[string][]Problem{
		"memory: too little":                           {memory},
		"refused for 2 reasons; the first: disk: full": {disk, memory},
	} {
		if got := (&Refusal{Problems: problems}).Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
