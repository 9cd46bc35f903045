package wireguard

import (
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// keySize is the size of a Curve25519 key.
const keySize = 32

// Key is a private or a public key.
type Key [keySize]byte

// String returns the key in the format of WireGuard's tools.
func (k Key) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// IsZero reports whether there is no key.
func (k Key) IsZero() bool { return k == Key{} }

// ParseKey reads the raw bytes of a public key from another node.
func ParseKey(raw []byte) (Key, error) {
	if len(raw) != keySize || Key(raw).IsZero() {
		return Key{}, fmt.Errorf("a WireGuard key of %d bytes: it must have %d that are not all zero",
			len(raw), keySize)
	}
	return Key(raw), nil
}

// Public returns the public key of a private key.
func (k Key) Public() (Key, error) {
	private, err := ecdh.X25519().NewPrivateKey(k[:])
	if err != nil {
		return Key{}, fmt.Errorf("WireGuard private key: %w", err)
	}
	return Key(private.PublicKey().Bytes()), nil
}

// Proof returns a value that only the holders of this private key and of the private key for the other
// public key can compute. A node uses it to prove to another node that an announced key is its own.
func (k Key) Proof(other Key, from, to string) ([]byte, error) {
	private, err := ecdh.X25519().NewPrivateKey(k[:])
	if err != nil {
		return nil, fmt.Errorf("WireGuard private key: %w", err)
	}
	public, err := ecdh.X25519().NewPublicKey(other[:])
	if err != nil {
		return nil, fmt.Errorf("WireGuard public key: %w", err)
	}
	shared, err := private.ECDH(public)
	if err != nil {
		return nil, fmt.Errorf("WireGuard public key: %w", err)
	}
	return hkdf.Key(sha256.New, shared, nil, "godwit overlay key 1\n"+from+"\n"+to, sha256.Size)
}

// NewKey makes a private key.
func NewKey() (Key, error) {
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return Key{}, fmt.Errorf("make a WireGuard key: %w", err)
	}
	return Key(private.Bytes()), nil
}

// LoadKey reads the private key of this node from a file that only root can read. It makes the file if it is
// missing. A file with other contents is an error, because other nodes would not know a new key.
func LoadKey(path string) (Key, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(path)
	}
	if err != nil {
		return Key{}, fmt.Errorf("read the WireGuard key of this node: %w", err)
	}
	if raw, err := base64.StdEncoding.DecodeString(string(data)); err == nil && len(raw) == keySize {
		return Key(raw), nil
	}
	return Key{}, fmt.Errorf("%s is not a WireGuard key; remove it, and the agent makes another one", path)
}

// makeKey writes the file atomically: a crash leaves either no key or this key.
func makeKey(path string) (Key, error) {
	key, err := NewKey()
	if err != nil {
		return Key{}, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return Key{}, fmt.Errorf("keep the WireGuard key of this node: %w", err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // 0600, os.CreateTemp
	if err != nil {
		return Key{}, fmt.Errorf("keep the WireGuard key of this node: %w", err)
	}
	_, err = file.WriteString(key.String())
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return Key{}, errors.Join(fmt.Errorf("keep the WireGuard key of this node: %w", err),
			os.Remove(file.Name()))
	}
	return key, nil
}

// parseHex reads a key in the format of the configuration protocol.
func parseHex(text string) (Key, error) {
	var key Key
	if len(text) != hex.EncodedLen(keySize) {
		return key, fmt.Errorf("a key of %d characters", len(text))
	}
	_, err := hex.Decode(key[:], []byte(text))
	return key, err
}
