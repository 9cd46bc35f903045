package agent

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/migration"
)

// FuzzPlatform: what a node says of itself is compared, and what is said of that is of a length
// that people read.
func FuzzPlatform(f *testing.F) {
	f.Add(
		[]byte(
			`{"architecture":"amd64","kernel":"6.1","criu":"4.2","page_bytes":4096,"cpu_features":["avx"],"cgroups":["cpu,cpuacct"]}`))
	f.Add([]byte(`{"architecture":"` + strings.Repeat("x", 1000) + `"}`))
	f.Add([]byte(`{"kernel":"999999999999999999999.-1","criu":"-"}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		var theirs migration.Platform
		if json.Unmarshal(document, &theirs) != nil {
			return
		}
		var said strings.Builder
		for _, pair := range [][2]migration.Platform{{theirs, {}}, {{}, theirs}, {theirs, theirs}} {
			problems, warnings := migration.Compare(pair[0], pair[1])
			for _, p := range append(problems, migration.CompareAnew(pair[0], pair[1])...) {
				said.WriteString(p.What + p.Why + p.Remedy)
			}
			said.WriteString(strings.Join(warnings, ""))
		}
		if said.Len() > 64<<10 {
			t.Errorf("%d bytes are said of a platform", said.Len())
		}
	})
}
