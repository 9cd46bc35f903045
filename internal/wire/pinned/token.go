package pinned

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

const (
	tokenPrefix = "gwc1"
	secretBytes = 16
	// maxTokenBytes is more than a token has: two parts in base64 and the prefix.
	maxTokenBytes = 128
)

// Fingerprint is the SHA-256 of a server's certificate.
type Fingerprint [sha256.Size]byte

// String is the fingerprint in hexadecimal digits.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// ParseFingerprint reads what String made.
func ParseFingerprint(text string) (f Fingerprint, err error) {
	data, err := hex.DecodeString(text)
	if err != nil || len(data) != len(f) {
		return f, fmt.Errorf("%.80q is not a fingerprint: want %d hexadecimal digits", text, 2*len(f))
	}
	return Fingerprint(data), nil
}

// Token says which server to trust, and has the secret that makes its holder trusted.
type Token struct {
	Server Fingerprint
	secret [secretBytes]byte
}

// NewToken makes a token for a server.
func NewToken(server Fingerprint) (Token, error) {
	token := Token{Server: server}
	if _, err := rand.Read(token.secret[:]); err != nil {
		return Token{}, fmt.Errorf("make a token: %w", err)
	}
	return token, nil
}

// String is the text that people carry: gwc1.FINGERPRINT.SECRET.
func (t Token) String() string {
	encode := base64.RawURLEncoding.EncodeToString
	return tokenPrefix + "." + encode(t.Server[:]) + "." + encode(t.secret[:])
}

// ParseToken reads a token. Its errors do not repeat the text, which is secret.
func ParseToken(text string) (Token, error) {
	text = strings.TrimSpace(text)
	parts := strings.Split(text, ".")
	if len(text) > maxTokenBytes || len(parts) != 3 || parts[0] != tokenPrefix {
		return Token{}, fmt.Errorf("not a token of a controller: want %s.FINGERPRINT.SECRET as "+
			"`godwit-controller token` prints it", tokenPrefix)
	}
	var token Token
	if !decode(token.Server[:], parts[1]) || !decode(token.secret[:], parts[2]) {
		return Token{}, errors.New("not a whole token: was a part of it lost in copying?")
	}
	return token, nil
}

func decode(into []byte, text string) bool {
	data, err := base64.RawURLEncoding.Strict().DecodeString(text)
	return err == nil && len(data) == len(into) && copy(into, data) == len(into)
}

// Secret is the part of the token that the client sends.
func (t Token) Secret() string { return base64.RawURLEncoding.EncodeToString(t.secret[:]) }

// Hash is what a server keeps of a secret. The secret has 128 random bits, so a plain hash of it cannot be
// reversed. Nothing is learnt from how long the look-up of a hash takes, as nobody can choose it.
func Hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}
