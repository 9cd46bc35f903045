package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/godwit/godwit/internal/network/pool"
)

// bridgedFileLimit bounds the size of the file of containers on bridges.
const bridgedFileLimit = 4 << 20

// records are the containers on bridges that this node knows: those that are here, and those to which it
// forwards. They have a lock of their own, which is taken last. Who changes a record reads, changes and puts
// it while holding the node's lock.
type records struct {
	path string // of the file

	mu  sync.Mutex
	all map[netip.Addr]bridged
}

func newRecords(path string) *records { return &records{path: path, all: map[netip.Addr]bridged{}} }

// at returns the record of an address.
func (r *records) at(ip netip.Addr) (one bridged, is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one, is = r.all[ip]
	return one, is
}

// list returns all records.
func (r *records) list() []bridged {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.all))
}

// count returns how many records there are.
func (r *records) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

// put adds a record or replaces that of the same address, but not in the file: see save.
func (r *records) put(one bridged) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[one.Address] = one
}

// note puts a record and saves. If saving fails, nothing has changed.
func (r *records) note(one bridged) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, was := r.all[one.Address]
	r.all[one.Address] = one
	err := r.write()
	switch {
	case err == nil:
	case was:
		r.all[one.Address] = known
	default:
		delete(r.all, one.Address)
	}
	return err
}

// drop removes the record of an address, but not from the file.
func (r *records) drop(ip netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, ip)
}

// clear removes all records, but not the file.
func (r *records) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.all)
}

// save replaces the file.
func (r *records) save() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.write()
}

// read reads the file, which need not exist.
func (r *records) read() ([]bridged, error) {
	file, err := os.Open(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(file, bridgedFileLimit+1))
	if err == nil && len(data) > bridgedFileLimit {
		err = fmt.Errorf("file is %w: over %d bytes", ErrInvalid, bridgedFileLimit)
	}
	var entries []json.RawMessage
	if err == nil {
		err = json.Unmarshal(data, &entries)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.path, err)
	}
	all := make([]bridged, len(entries))
	for i, entry := range entries {
		if err := json.Unmarshal(entry, &all[i]); err != nil {
			all[i] = bridged{} // refused below
		}
	}
	return all, nil
}

// write does the work of save. The caller holds mu.
func (r *records) write() error {
	data, err := json.Marshal(slices.AppendSeq(make([]bridged, 0, len(r.all)), maps.Values(r.all)))
	if err == nil && len(data) > bridgedFileLimit {
		err = fmt.Errorf("%d bytes are %w: at most %d", len(data), ErrInvalid, bridgedFileLimit)
	}
	if err == nil {
		err = pool.ReplaceFile(r.path, data)
	}
	if err != nil {
		return fmt.Errorf("save the record of containers on bridges: %w", err)
	}
	return nil
}

// bridged is the record of such a container. Records are kept in a file, because connections that came in
// through this node continue through it for as long as they last.
type bridged struct {
	Container string      `json:"container"`
	Address   netip.Addr  `json:"address"`
	Here      bool        `json:"here"`             // its network namespace is at NetnsPath
	MTU       int         `json:"mtu,omitempty"`    // of its routes
	Bridge    string      `json:"bridge,omitempty"` // on which this node answers ARP for it meanwhile
	Via       int         `json:"via,omitempty"`    // number of the node that has it; 0: this node
	Origin    int         `json:"origin,omitempty"` // number of the node from which it last arrived; 0: none
	Ports     []Published `json:"ports,omitempty"`
	Arriving  bool        `json:"arriving,omitempty"`  // not known yet whether it will run here
	Returning bool        `json:"returning,omitempty"` // this node forwarded to it; does so again on undo
	Before    int         `json:"before,omitempty"`    // the previous Origin
	closing   bool        // its engine is about to forget it
}

// undone marks a container as not having come back.
func (one *bridged) undone() {
	if one.Returning {
		one.Origin = one.Before
	}
	one.Arriving, one.Returning, one.Before = false, false, 0
}
