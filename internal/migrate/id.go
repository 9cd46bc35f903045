package migrate

import (
	"crypto/rand"
	"encoding/hex"
)

// NewID makes up the id of a migration.
func NewID() string {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails (crypto/rand)
	return hex.EncodeToString(id)
}
