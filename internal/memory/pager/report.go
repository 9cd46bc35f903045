package pager

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
)

// maxReport bounds the size of a report.
const maxReport = 64 << 10

// ReadReport reads the report of a pager, in any process. A missing report has the state FillNone.
func ReadReport(path string) (memory.FillReport, error) {
	r, err := loadReport(path)
	if err != nil || r.State != memory.Filling || alive(r) {
		return r, err
	}
	// The pager writes its last report before it ends, so the present one is final.
	if r, err = loadReport(path); err == nil && r.State == memory.Filling {
		r.State, r.Error = memory.FillLost, fmt.Sprintf("the pager, process %d, was killed", r.PID)
	}
	return r, err
}

func loadReport(path string) (memory.FillReport, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return memory.FillReport{State: memory.FillNone}, nil
	}
	if err != nil {
		return memory.FillReport{}, fmt.Errorf("read the report on a container's memory: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxReport))
	var r memory.FillReport
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return memory.FillReport{}, fmt.Errorf("read the report on a container's memory, %s: %w", path, err)
	}
	return r, nil
}

// alive reports whether the pager that wrote a report is running.
func alive(r memory.FillReport) bool {
	process, err := kernel.ReadProcess(r.PID)
	return err == nil && process.StartTicks == r.StartTicks && process.State != 'Z' && process.State != 'X'
}

// writeReport replaces the report at path. It is about memory, so it need not be durable.
func writeReport(path string, r memory.FillReport) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	fresh := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(fresh, append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}
