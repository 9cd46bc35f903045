package store

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Kind of a record.
type Kind string

// The kinds.
const (
	KindNode      Kind = "node"
	KindContainer Kind = "container"
	KindIntent    Kind = "intent"
	KindToken     Kind = "token"
	KindAuthority Kind = "authority"
	KindKeyPair   Kind = "keypair"
)

// Key names a record: each kind has its own names.
type Key struct {
	Kind Kind
	Name string
}

// String is the key's path: kind/name.
func (k Key) String() string { return string(k.Kind) + "/" + k.Name }

// ParseKey reads a path that String made.
func ParseKey(path string) (Key, error) {
	kind, name, found := strings.Cut(path, "/")
	key := Key{Kind(kind), name}
	if !found {
		return Key{}, fmt.Errorf("record %.80q has no kind", path)
	}
	return key, key.check()
}

func (k Key) check() error {
	switch k.Kind {
	case KindNode, KindContainer, KindIntent, KindToken, KindAuthority, KindKeyPair:
	default:
		return fmt.Errorf("record %.80q has an unknown kind: was it written by a newer controller?",
			k.String())
	}
	if k.Name == "" || len(k.Name) > maxNameBytes || strings.ContainsAny(k.Name, "/\x00") {
		return fmt.Errorf("record of kind %s: name %.80q must have 1 to %d bytes, without / and NUL", k.Kind,
			k.Name, maxNameBytes)
	}
	return nil
}

// Record is a stored value.
type Record struct {
	Key   Key
	Value []byte // JSON
}

// Change writes a record, or removes it if Value is nil.
type Change struct {
	Key   Key
	Value []byte
}

// Put is a change that writes a value.
func Put(kind Kind, name string, value any) (Change, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return Change{}, fmt.Errorf("encode %s %s: %w", kind, name, err)
	}
	return Change{Key{kind, name}, data}, nil
}

// Remove is a change that removes a record, which need not exist.
func Remove(kind Kind, name string) Change { return Change{Key: Key{kind, name}} }

// Check refuses changes that some implementation would refuse. Every implementation calls it.
func Check(changes []Change) error {
	if len(changes) > MaxChanges {
		return fmt.Errorf("%d changes at once; the limit is %d", len(changes), MaxChanges)
	}
	seen := map[Key]bool{}
	for _, one := range changes {
		if err := one.Key.check(); err != nil {
			return err
		}
		if len(one.Value) > MaxValueBytes {
			return fmt.Errorf("record %s has %d bytes; the limit is %d", one.Key, len(one.Value),
				MaxValueBytes)
		}
		if one.Value != nil && !json.Valid(one.Value) {
			return fmt.Errorf("record %s is not JSON", one.Key)
		}
		if seen[one.Key] {
			return fmt.Errorf("record %s is changed twice at once", one.Key)
		}
		seen[one.Key] = true
	}
	return nil
}
