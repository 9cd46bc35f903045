package anew

import (
	"fmt"
	"strings"
	"testing"
)

func FuzzDecodePorts(f *testing.F) {
	f.Add([]byte(`[{"protocol":"tcp","number":6379},{"protocol":"udp","number":53}]`))
	f.Add([]byte(`[{"protocol":"sctp","number":1}]`))
	f.Add([]byte(`[{"protocol":"tcp","number":0}]`))
	f.Add([]byte(`[{"protocol":"tcp","number":65536}]`))
	f.Add([]byte(fmt.Sprintf(`[%s{}]`, strings.Repeat(`{"protocol":"tcp","number":1},`, maxPorts))))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, document []byte) {
		ports, err := decodePorts(document)
		if err != nil && ports != nil || len(ports) > maxPorts {
			t.Errorf("%d ports, %v", len(ports), err)
		}
		for _, p := range ports {
			if p.Number == 0 || p.Protocol != "tcp" && p.Protocol != "udp" {
				t.Errorf("port %v is accepted", p)
			}
		}
	})
}
