package anew

import (
	"encoding/json"
	"fmt"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
)

// maxPorts bounds what a source says of the ports of a container.
const maxPorts = 1 << 12

func decodePorts(document []byte) ([]engine.Port, error) {
	if len(document) == 0 {
		return nil, nil
	}
	var ports []engine.Port
	if err := json.Unmarshal(document, &ports); err != nil {
		return nil, fmt.Errorf("%w: ports of the container: %w", api.ErrInvalid, err)
	}
	if len(ports) > maxPorts {
		return nil, fmt.Errorf("%w: the container listens on %d ports; the limit is %d", api.ErrInvalid,
			len(ports), maxPorts)
	}
	for _, p := range ports {
		if p.Protocol != "tcp" && p.Protocol != "udp" || p.Number == 0 {
			return nil, fmt.Errorf("%w: the container listens on an invalid port: %.20q %d",
				api.ErrInvalid, p.Protocol,
				p.Number)
		}
	}
	return ports, nil
}
