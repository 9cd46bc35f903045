package files

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/godwit/godwit/internal/bench/testbed"
)

const (
	diskImage = "/var/lib/godwit/bench.ext4" // on the node's own disk
	diskBytes = 32 << 30                     // sparse: only written blocks take space
)

// freshDisks mounts a new, empty ext4 on a directory of each node. On a file system from which many files
// were recently removed, every new file takes longer: their inode numbers are not reused for a minute, and
// the kernel examines all of them (fs/ext4/ialloc.c, recently_deleted). A way would thus pay for the ways
// before it.
func freshDisks(ctx context.Context, b *testbed.Bed, dir string) error {
	for _, node := range testbed.Nodes {
		if err := freshDisk(ctx, b, node, dir); err != nil {
			return fmt.Errorf("a new file system for %s on node %s: %w", dir, node, err)
		}
	}
	return nil
}

func freshDisk(ctx context.Context, b *testbed.Bed, node, dir string) error {
	image, err := b.Path(node, diskImage)
	if err != nil {
		return err
	}
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(image, diskBytes); err != nil {
		return err
	}
	return b.All(ctx, node,
		[]string{"mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", diskImage},
		[]string{"mkdir", "-p", dir},
		// Nothing may be initialised in the background during a measurement.
		[]string{"mount", "-o", "loop,noinit_itable", diskImage, dir})
}

// dropDisks unmounts them from nodes that have them.
func dropDisks(ctx context.Context, b *testbed.Bed, dir string) error {
	var failed error
	for _, node := range testbed.Nodes {
		if !b.Has(node, diskImage) {
			continue
		}
		var err error
		if b.Mounted(node, dir) {
			_, err = b.Exec(ctx, node, "umount", dir)
		}
		image, pathErr := b.Path(node, diskImage)
		if pathErr == nil {
			pathErr = os.Remove(image)
		}
		failed = errors.Join(failed, err, pathErr)
	}
	return failed
}
