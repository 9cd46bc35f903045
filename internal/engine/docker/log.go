package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/files"
)

// Docker since 23.0 reads only as much of a log as it has found at the start and written since (moby,
// daemon/logger/loggerutils/logfile.go). A log that comes from another node cannot be there at the start,
// so blanks reserve room for it. They mean nothing in JSON, and are before the log in the end
// (oci.fillLog).
const (
	logSlack = 1 << 20 // what may at least be logged while the container moves
	maxLog   = 8 << 30
)

// logFiles are those in which Docker keeps containers' output.
type logFiles struct{ *server }

func (a *logFiles) logPath(ctx context.Context, id string) (string, error) {
	root, err := a.directory(ctx)
	return filepath.Join(root, "containers", id, id+"-json.log"), err
}

// logBytes returns the size of a container's log, without leading blanks, up to the maximum for which the
// target reserves room: of a larger log, only the end moves.
func (a *logFiles) logBytes(ctx context.Context, f oci.Container) (int64, error) {
	path, err := a.Log(ctx, f)
	if err != nil || path == "" {
		return 0, err
	}
	log, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return 0, err
	}
	blank, err := oci.Blanks(log)
	return min(info.Size()-blank, maxLog), err
}

// reserveLog makes room for the log of an arriving container, before Docker opens its own log.
func (a *logFiles) reserveLog(ctx context.Context, id string, x extra) error {
	if x.Host.LogConfig.Type != logDriver {
		return nil
	}
	path, err := a.logPath(ctx, id)
	if err != nil {
		return err
	}
	room := x.LogBytes + logSlack + x.LogBytes/8
	if most := sizeOf(x.Host.LogConfig.Config["max-size"]); most > 0 {
		room = min(room, most) // Docker rotates a larger log
	}
	if err := files.CheckSpace(filepath.Dir(path), room); err != nil {
		return fmt.Errorf("log of container %.12s: %w", id, err)
	}
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	blank := bytes.Repeat([]byte{' '}, 256<<10)
	for err == nil && room > 0 {
		n := min(room, int64(len(blank)))
		_, err = log.Write(blank[:n])
		room -= n
	}
	return errors.Join(err, log.Close())
}

// sizeOf parses a size in Docker's notation. It returns 0 for none, and for a size that Docker would
// refuse.
func sizeOf(text string) int64 {
	text = strings.TrimSuffix(strings.ToLower(strings.TrimSpace(text)), "b")
	factors := map[string]float64{"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
	factor := 1.0
	for suffix, is := range factors {
		if rest, found := strings.CutSuffix(text, suffix); found {
			text, factor = rest, is
			break
		}
	}
	number, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || number < 0 || number*factor > maxLog {
		return 0
	}
	return int64(number * factor)
}
