package lab

import (
	"context"
	"fmt"
)

// Where a node's Podman keeps its containers: below the node's own files, because an overlay cannot have its layers in another one.
const (
	podmanData = nodeStateDirectory + "/podman"
	podmanHome = "/var/lib/containers"
)

// PreparePodman gives a node a storage of its own for Podman, which has no daemon.
func (l *Lab) PreparePodman(ctx context.Context, node string) error {
	script := "mkdir -p " + podmanData + " " + podmanHome + " && mount --bind " + podmanData + " " + podmanHome
	if _, err := l.Exec(ctx, node, "sh", "-c", script); err != nil {
		return fmt.Errorf("storage for Podman of node %s: %w", node, err)
	}
	return nil
}
