package checkpoint

import (
	"context"
	"sync"

	"github.com/godwit/godwit/internal/criu"
)

// CRIU finds CRIU when it is needed, once. The zero value is ready.
type CRIU struct {
	mu    sync.Mutex
	found criu.Tool
	facts *criu.KernelFacts
}

// NewCRIU returns a CRIU that is already found; for a zero tool it returns the zero value.
func NewCRIU(tool criu.Tool) *CRIU { return &CRIU{found: tool} }

// Tool finds CRIU.
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

// kernelFacts returns facts about the kernel, which it finds once; nil if that is impossible.
func (c *CRIU) kernelFacts(ctx context.Context, tool criu.Tool) *criu.KernelFacts {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.facts == nil {
		c.facts, _ = tool.KernelFacts(ctx) // without them CRIU finds everything itself
	}
	return c.facts
}
