package embedded

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

func TestValidate(t *testing.T) {
	bad := map[string]func(*engine.Definition){
		"id":          func(d *engine.Definition) { d.ID = "../../../etc" },
		"id case":     func(d *engine.Definition) { d.ID = strings.Repeat("A", 64) },
		"name":        func(d *engine.Definition) { d.Name = "../x" },
		"no name":     func(d *engine.Definition) { d.Name = "" },
		"long name":   func(d *engine.Definition) { d.Name = strings.Repeat("a", 64) },
		"hostname":    func(d *engine.Definition) { d.Hostname = "a\nb" },
		"no layers":   func(d *engine.Definition) { d.Layers = nil },
		"layer":       func(d *engine.Definition) { d.Layers = []string{"sha256:../../.."} },
		"many layers": func(d *engine.Definition) { d.Layers = make([]string, maxLayers+1) },
		"no command":  func(d *engine.Definition) { d.Args = nil },
		"zero byte":   func(d *engine.Definition) { d.Args = []string{"a\x00b"} },
		"huge":        func(d *engine.Definition) { d.Args = []string{strings.Repeat("a", maxBytes+1)} },
		"variable":    func(d *engine.Definition) { d.Env = []string{"=x"} },
		"directory":   func(d *engine.Definition) { d.Dir = "tmp" },
		"volume":      func(d *engine.Definition) { d.Volumes = []engine.Volume{{Name: "..", Path: "/v"}} },
		"volume path": func(d *engine.Definition) { d.Volumes = []engine.Volume{{Name: "v", Path: "/v/.."}} },
		"volume twice": func(d *engine.Definition) {
			d.Volumes = []engine.Volume{{Name: "v", Path: "/a"}, {Name: "v", Path: "/b"}}
		},
		"memory": func(d *engine.Definition) { d.Limits.MemoryBytes = 1 },
		"cpus":   func(d *engine.Definition) { d.Limits.CPUs = 1e300 },
		"pids":   func(d *engine.Definition) { d.Limits.Pids = -1 },
		"mac":    func(d *engine.Definition) { d.Network.MAC = "x" },
		"engine": func(d *engine.Definition) { d.Engine = json.RawMessage(`{"stdio":["a"]}`) },
		"engine's word": func(d *engine.Definition) {
			d.Engine = json.RawMessage(
				`{"stdio":["","","fd:[1]"]}`)
		},
	}
	if err := validate(definition(t, "true")); err != nil {
		t.Errorf("an ordinary definition: %v", err)
	}
	for name, spoil := range bad {
		d := definition(t, "true")
		if spoil(&d); validate(d) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzDefinition(f *testing.F) {
	f.Add(
		[]byte(
			`{"id":"x","layers":["sha256:aa"],"args":["a"],"volumes":[{"name":"v","path":"/v"}],"engine":{"stdio":["","",""]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var d engine.Definition
		if json.Unmarshal(data, &d) != nil || validate(d) != nil {
			return
		}
		p := paths{state: "/s", run: "/r", group: "/g"}
		spec, err := makeSpec(specInput{definition: d, files: p.of(d.ID)})
		if err != nil {
			return
		}
		for _, m := range spec.Mounts {
			if m.Type == "bind" && !strings.HasPrefix(m.Source, "/s/") &&
				!strings.HasPrefix(m.Source, "/r/") {
				t.Errorf("binds %s", m.Source)
			}
		}
	})
}
