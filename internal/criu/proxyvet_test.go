package criu

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	core "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"google.golang.org/protobuf/proto"
)

// TestHostileImages gives a process in the images more capabilities than the container has, and checks that
// CRIU gets none of the images, and that the original images can then be restored.
func TestHostileImages(t *testing.T) {
	c := newContainer(t)
	c.dump()
	c.kill()
	path := filepath.Join(c.images, "core-1.img")
	before, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, withAllCapabilities(t, before), 0o600))

	r := c.startRestore()
	must(t, r.proxy.WaitReady(deadline(t)))
	asked := false
	_, err = r.proxy.Go(deadline(t), ProxyOptions{}, func() error {
		asked = true
		return nil
	})
	if err == nil || asked || !strings.Contains(err.Error(), "process 1: its") ||
		!strings.Contains(err.Error(), "CAP_SYS_ADMIN") {
		t.Errorf("the restore of hostile images: %v (asked whether it may run: %v), want a refusal that "+
			"names process 1 and CAP_SYS_ADMIN", err, asked)
	}
	<-r.done
	log, err := os.ReadFile(filepath.Join(c.dir, "work", restoreLog))
	must(t, err)
	if bytes.Contains(log, []byte("(00.")) {
		t.Errorf("CRIU has begun to restore hostile images:\n%s", log)
	}

	must(t, os.WriteFile(path, before, 0o600))
	_ = os.Remove(filepath.Join(c.images, "restore.log"))
	r = c.startRestore()
	must(t, r.proxy.WaitReady(deadline(t)))
	if _, err := r.proxy.Go(deadline(t), ProxyOptions{}, func() error { return nil }); err != nil {
		t.Errorf("the restore of the images as they were: %v\n%s", err, r.logs())
	}
	must(t, <-r.done)
	c.attach()
}

// withAllCapabilities changes the image of a process.
func withAllCapabilities(t *testing.T, image []byte) []byte {
	t.Helper()
	var out []byte
	err := parseEntries(bytes.NewReader(image), imageCore, func(data []byte) error {
		var entry core.CoreEntry
		if err := proto.Unmarshal(data, &entry); err != nil {
			return err
		}
		for _, set := range [][]uint32{entry.ThreadCore.Creds.CapEff, entry.ThreadCore.Creds.CapPrm,
			entry.ThreadCore.Creds.CapBnd} {
			set[0] = ^uint32(0)
		}
		changed, err := proto.Marshal(&entry)
		out = append(append(bytes.Clone(image[:8]), byte(len(changed)), byte(len(changed)>>8), 0, 0),
			changed...)
		return err
	})
	must(t, err)
	return out
}
