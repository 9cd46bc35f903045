package checkpoint

import (
	"context"
	"sync"

	"github.com/godwit/godwit/internal/criu"
)

// CRIU is looked for when it is needed, and once. The zero value is ready.
type CRIU struct {
	mu    sync.Mutex
	found criu.Tool
	facts *criu.KernelFacts
}

// NewCRIU is one that need not be looked for; of a zero tool it is the zero value.
func NewCRIU(tool criu.Tool) *CRIU { return &CRIU{found: tool} }

// Tool finds it.
func (c *CRIU) Tool() (criu.Tool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found.Path != "" {
		return c.found, nil
	}
	tool, err := criu.Find()
	if err == nil {
		c.found = tool
	}
	return tool, err
}

// kernelFacts are found out once; nil if that is not possible.
func (c *CRIU) kernelFacts(ctx context.Context, tool criu.Tool) *criu.KernelFacts {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.facts == nil {
		c.facts, _ = tool.KernelFacts(ctx) // without them CRIU does all itself
	}
	return c.facts
}
