package image

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
)

// OpenVerified reads an archive, compressed or not, and returns it uncompressed. It returns io.EOF only if
// the content is that of the layer.
func OpenVerified(raw io.Reader, diffID string) (io.Reader, error) {
	plain, err := plainArchive(raw)
	if err != nil {
		return nil, truncated(err)
	}
	return &verified{in: plain, digest: sha256.New(), diffID: diffID}, nil
}

// Verified reads data unchanged. It returns io.EOF only if the data has this digest.
func Verified(raw io.Reader, digest string) io.Reader {
	return &verified{in: raw, digest: sha256.New(), diffID: digest}
}

type verified struct {
	in     io.Reader
	digest hash.Hash
	diffID string
}

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.in.Read(p)
	v.digest.Write(p[:n])
	if errors.Is(err, io.EOF) {
		if got := "sha256:" + hex.EncodeToString(v.digest.Sum(nil)); got != v.diffID {
			return n, fmt.Errorf("%w: the content of its archive has digest %s", ErrInvalid, got)
		}
	}
	return n, err
}
