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

// podmanSettings are directories of which a node gets copies of its own.
var podmanSettings = []string{"/etc/containers", "/usr/share/containers"}

// PreparePodman gives a node a storage and a configuration of its own for Podman, which has no daemon.
func (l *Lab) PreparePodman(ctx context.Context, node string) error {
	script := "set -e; mkdir -p " + podmanData + podmanHome + " " + podmanHome + "; mount --bind " + podmanData + podmanHome + " " + podmanHome
	for _, dir := range podmanSettings {
		own := podmanData + dir
		script += "; mkdir -p " + own + "; cp -a " + dir + "/. " + own + "; mount --bind " + own + " " + dir
	}
	if _, err := l.Exec(ctx, node, "sh", "-c", script); err != nil {
		return fmt.Errorf("storage for Podman of node %s: %w", node, err)
	}
	return nil
}
