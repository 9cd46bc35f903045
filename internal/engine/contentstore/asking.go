package contentstore

import (
	"context"

	"github.com/godwit/godwit/internal/patience"
)

// asking bounds the time of a call to containerd.
func asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return patience.Question.For(ctx, "containerd", patience.Program("containerd"))
}
