package moves

import (
	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/workload/pages"
	"github.com/godwit/godwit/internal/memory"
)

func (w Workload) imageName() string {
	if w.Memory != nil {
		return memoryImage
	}
	return w.Image
}

// command returns the container's command; empty if the image has it.
func (w Workload) command() []string {
	if w.Memory != nil {
		return append([]string{labimage.ProgramPath}, w.Memory.Args()...)
	}
	return w.Args
}

// The workloads of the suite switchover. All but two consist only of memory, whose every page is verified.
const (
	WorkloadTiny  = "tiny"  // a shell's sleep
	WorkloadRedis = "redis" // 64 MiB of data, and a client that counts
)

// Workload is a program in the containers that are moved.
type Workload struct {
	Name   string
	Image  string // of package lab/image; empty if memory is set
	Args   []string
	Port   int           // of a Redis that is filled and has a client; 0: none
	Memory *pages.Config // this program, with this memory
	Env    []string      // NAME=VALUE
	Client bool          // of a program that listens: it has a client, which is not on its node
}

// FogBytes is the memory of study B's server.
const FogBytes = 110e6

// OfPages makes a workload of this program. Sizes are rounded to whole pages.
func OfPages(name string, config pages.Config) Workload {
	for _, size := range []*int64{&config.Size, &config.Hot} {
		*size -= *size % int64(memory.PageSize())
	}
	return Workload{Name: name, Memory: &config}
}
