package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

// DefaultTokenLifetime is how long a token can be used by default.
const DefaultTokenLifetime = 15 * time.Minute

const (
	tokenPrefix      = "gw1"
	secretBytes      = 16
	maxTokens        = 256
	maxTokenLifetime = 30 * 24 * time.Hour
	// spentTokensKept is how long a used or expired token is remembered, so that its holder can be told which
	// it is.
	spentTokensKept = 24 * time.Hour
)

// Errors for a token that the CA does not accept.
var (
	ErrTokenUnknown = errors.New("token is not known here")
	ErrTokenUsed    = errors.New("token has been used")
	ErrTokenExpired = errors.New("token has expired")
)

// Token is what a joining node gets: whom to trust, and the secret that makes it trusted.
type Token struct {
	CA     Fingerprint
	secret [secretBytes]byte
}

// String is the text that an operator carries to the new node: gw1.FINGERPRINT.SECRET.
func (t Token) String() string {
	encode := base64.RawURLEncoding.EncodeToString
	return tokenPrefix + "." + encode(t.CA[:]) + "." + encode(t.secret[:])
}

// ParseToken reads a token's text. Its errors do not repeat the text, which is secret.
func ParseToken(text string) (Token, error) {
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 3 || parts[0] != tokenPrefix {
		return Token{}, fmt.Errorf("not a token: want %s.FINGERPRINT.SECRET as `godwit node token` prints it",
			tokenPrefix)
	}
	var token Token
	if !decodeExactly(token.CA[:], parts[1]) || !decodeExactly(token.secret[:], parts[2]) {
		return Token{}, errors.New("not a whole token: was a part of it lost in copying?")
	}
	return token, nil
}

func decodeExactly(into []byte, text string) bool {
	data, err := base64.RawURLEncoding.Strict().DecodeString(text)
	return err == nil && len(data) == len(into) && copy(into, data) == len(into)
}

// tokenRecord is what the CA keeps of a token. The secret has 128 random bits, so a plain hash of it cannot
// be reversed.
type tokenRecord struct {
	Hash string `json:"hash"`
	// Issued keeps a token that has expired from coming to life again when the clock jumps back.
	Issued  time.Time `json:"issued,omitzero"`
	Expires time.Time `json:"expires"`
	Used    bool      `json:"used"`
	Node    string    `json:"node,omitempty"`
}

func hashSecret(secret []byte) string {
	sum := sha256.Sum256(secret)
	return hex.EncodeToString(sum[:])
}

// IssueToken makes a token with which one node can join within ttl (0: DefaultTokenLifetime). If the token
// names a node, only that node can use it. A node that has joined before can join again only with such a
// token, for example after its disk was lost: it keeps its number.
func (a *Authority) IssueToken(ttl time.Duration, node string) (Token, error) {
	if ttl == 0 {
		ttl = DefaultTokenLifetime
	}
	if ttl < 0 || ttl > maxTokenLifetime {
		return Token{}, fmt.Errorf("token lifetime %s: want more than 0 and at most %s",
			ttl, maxTokenLifetime)
	}
	if node != "" {
		if err := CheckName(node); err != nil {
			return Token{}, err
		}
	}
	token := Token{CA: fingerprint(a.certificate)}
	if _, err := rand.Read(token.secret[:]); err != nil {
		return Token{}, fmt.Errorf("make a token: %w", err)
	}
	now := a.now()
	return token, a.change(func(state *authorityState) error {
		state.forgetSpent(now)
		if len(state.Tokens) >= maxTokens {
			return fmt.Errorf("%d tokens have been issued and not used; wait until some expire", maxTokens)
		}
		hash := hashSecret(token.secret[:])
		record := tokenRecord{Hash: hash, Issued: now, Expires: now.Add(ttl), Node: node}
		state.Tokens = append(state.Tokens, record)
		return nil
	})
}

// findToken returns the record of a secret. It compares all records, each in constant time.
func (s *authorityState) findToken(secret []byte, now time.Time) (*tokenRecord, error) {
	hash := hashSecret(secret)
	var found *tokenRecord
	for i := range s.Tokens {
		if subtle.ConstantTimeCompare([]byte(s.Tokens[i].Hash), []byte(hash)) == 1 {
			found = &s.Tokens[i]
		}
	}
	switch {
	case found == nil:
		return nil, ErrTokenUnknown
	case found.Used:
		return nil, ErrTokenUsed
	case now.Add(maxClockSkew).Before(found.Issued):
		return nil, fmt.Errorf("%w: the token was made at %s, and this node's clock says %s; set the clock",
			ErrClockSkew, found.Issued.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case now.After(found.Expires):
		return nil, fmt.Errorf("%w at %s", ErrTokenExpired, found.Expires.UTC().Format(time.RFC3339))
	}
	return found, nil
}

func (s *authorityState) forgetSpent(now time.Time) {
	kept := s.Tokens[:0]
	for _, token := range s.Tokens {
		if now.Before(token.Expires.Add(spentTokensKept)) {
			kept = append(kept, token)
		}
	}
	s.Tokens = kept
}
