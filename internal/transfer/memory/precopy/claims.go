package precopy

import (
	"context"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/wire/stream"
)

// MaxClaims bounds how many digests a target may send for a container with that much memory: twice what the
// container has, and some.
func MaxClaims(memoryBytes int64) uint64 {
	const least = 64 << 20
	return uint64(2*memoryBytes+least) / uint64(memory.PageSize())
}

// claim is what a target says that it has.
type claim struct {
	task    memory.Task
	address uint64
	digests []pipeline.Digest
}

// sendClaims tells the source which pages a residual copy has; nil: there is nothing to claim, after all.
func sendClaims(data *stream.Session, key pipeline.Key, pages *memory.Residual, most uint64) error {
	hasher, err := pipeline.NewHasher(key)
	if err != nil {
		return err
	}
	if err := data.Begin(KindClaims, ""); err != nil {
		return err
	}
	if pages != nil {
		err = pipeline.Claims(pages, hasher, pages.Contents(most),
			func(task memory.Task, address uint64, digests []pipeline.Digest) error {
				return pipeline.EncodeClaim(data, task, address, digests)
			})
	}
	if err = errors.Join(err, data.End()); err != nil {
		return fmt.Errorf("tell what is here: %w", err)
	}
	return data.Push()
}

// HearClaims takes what the target has. It is called once, by who reads the connection.
func (p *Sender) HearClaims(section stream.Section, most uint64) error {
	var claims []claim
	err := pipeline.DecodeClaims(section, most,
		func(task memory.Task, address uint64, digests []pipeline.Digest) error {
			claims = append(claims, claim{task, address, append([]pipeline.Digest(nil), digests...)})
			return nil
		})
	if err != nil {
		return err
	}
	select {
	case p.claims <- claims:
		return nil
	default:
		return errors.New("the target reported twice which pages it has")
	}
}

// AwaitClaims waits for what the target has, before anything is sent. It returns how many pages that are.
func (p *Sender) AwaitClaims(ctx context.Context) (pages int, err error) {
	select {
	case claims := <-p.claims:
		for _, c := range claims {
			if err := p.Claim(c.task, c.address, c.digests); err != nil {
				return pages, err
			}
			pages += len(c.digests)
		}
		return pages, nil
	case <-p.Done():
		return 0, p.Err()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}
