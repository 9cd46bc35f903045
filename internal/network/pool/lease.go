package pool

import (
	"bytes"
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
	"time"
)

// leaseFileLimit bounds the size of the file; a subnet has 253 addresses of some 150 bytes each.
const leaseFileLimit = 1 << 20

// Lease is an address of this node's subnet that a container holds, wherever it runs.
type Lease struct {
	Container string     `json:"container"`
	Address   netip.Addr `json:"address"`
	MAC       string     `json:"mac"`
	MTU       int        `json:"mtu"`
	Since     time.Time  `json:"since"`
}

// leaseFile is the contents of the file.
type leaseFile struct {
	Next   int     `json:"next"` // last byte of the address to try first
	Leases []Lease `json:"leases"`
}

// Leases are the assigned addresses of this node's subnet, kept in a file that is always replaced as a
// whole.
type Leases struct {
	path string
	pool Pool

	mu   sync.Mutex
	next int
	held map[netip.Addr]Lease
}

// OpenLeases reads the file; a missing file means that no address is assigned.
func OpenLeases(path string, pool Pool) (*Leases, error) {
	l := &Leases{path: path, pool: pool, next: 2, held: map[netip.Addr]Lease{}}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the address leases: %w", err)
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, leaseFileLimit+1))
	if err != nil {
		return nil, fmt.Errorf("read the address leases %s: %w", path, err)
	}
	if err := l.decode(data); err != nil {
		return nil, fmt.Errorf("address leases %s: %w; restore the file, or remove it when no container "+
			"of this node runs anywhere", path, err)
	}
	return l, nil
}

// decode checks everything: a misread lease would assign a container's address to another.
func (l *Leases) decode(data []byte) error {
	if len(data) > leaseFileLimit {
		return fmt.Errorf("file is %w: over %d bytes", ErrInvalid, leaseFileLimit)
	}
	var content leaseFile
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&content); err != nil {
		return fmt.Errorf("file is %w: %w", ErrInvalid, err)
	}
	owners := map[string]bool{}
	for _, lease := range content.Leases {
		if _, err := l.pool.Check(Address{IP: lease.Address, MAC: lease.MAC, MTU: lease.MTU}); err != nil {
			return err
		}
		_, twice := l.held[lease.Address]
		if twice || owners[lease.Container] || !ValidID.MatchString(lease.Container) {
			return fmt.Errorf("lease of %s to %q is %w: the address or container is listed twice, or "+
				"the container ID is not valid",
				lease.Address, lease.Container, ErrInvalid)
		}
		if !l.pool.Own().Contains(lease.Address) {
			return fmt.Errorf("lease of %s is %w: the address is not of this node (number %d)", lease.Address,
				ErrInvalid, l.pool.Number)
		}
		l.held[lease.Address], owners[lease.Container] = lease, true
	}
	if content.Next >= 2 && content.Next < 255 {
		l.next = content.Next
	}
	return nil
}

// Lease assigns a container an address for life, or returns the one that it has. The address stays the
// container's until Release, wherever the container is. Addresses are assigned in turn, so that a
// released address rests for as long as possible. The MTU is that of a new address.
func (l *Leases) Lease(id string, mtu int) (Address, error) {
	if !ValidID.MatchString(id) {
		return Address{}, fmt.Errorf("container id %q is %w", id, ErrInvalid)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range l.held {
		if lease.Container == id {
			return Address{IP: lease.Address, MAC: lease.MAC, MTU: lease.MTU}, nil
		}
	}
	base := l.pool.Own().Addr().As4()
	for range 253 {
		base[3] = byte(l.next)
		if l.next++; l.next == 255 {
			l.next = 2
		}
		ip := netip.AddrFrom4(base)
		if _, taken := l.held[ip]; taken {
			continue
		}
		address := Address{IP: ip, MAC: ContainerMAC(ip).String(), MTU: mtu}
		l.held[ip] = Lease{Container: id, Address: ip, MAC: address.MAC, MTU: mtu, Since: time.Now().UTC()}
		if err := l.save(); err != nil {
			delete(l.held, ip)
			return Address{}, fmt.Errorf("lease an address to container %s: %w", id, err)
		}
		return address, nil
	}
	return Address{}, fmt.Errorf("lease an address to container %s: %w in %s; remove containers of this "+
		"node that are no longer needed",
		id, ErrNoAddress, l.pool.Own())
}

// Take leases an address of this node to the container that already has it.
func (l *Leases) Take(id string, address Address) error {
	if number, err := l.pool.Home(address.IP); err != nil || number != l.pool.Number {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for ip, lease := range l.held {
		switch {
		case lease.Container == id && ip == address.IP:
			return nil
		case lease.Container == id:
			return fmt.Errorf("%w: the container's address was %s before; use that address", ErrInvalid, ip)
		case ip == address.IP:
			return fmt.Errorf("%w: %s is that of container %s; give it another one of %s", ErrAddressTaken,
				ip, lease.Container, l.pool.Own())
		}
	}
	l.held[address.IP] = Lease{Container: id, Address: address.IP, MAC: address.MAC, MTU: address.MTU,
		Since: time.Now().UTC()}
	if err := l.save(); err != nil {
		delete(l.held, address.IP)
		return err
	}
	return nil
}

// Release takes back the address of a container that no longer exists on any node. It is idempotent.
func (l *Leases) Release(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ip, lease := range l.held {
		if lease.Container != id {
			continue
		}
		delete(l.held, ip)
		if err := l.save(); err != nil {
			l.held[ip] = lease
			return fmt.Errorf("release the address of container %s: %w", id, err)
		}
	}
	return nil
}

// List lists the assigned addresses of this node, in order.
func (l *Leases) List() []Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sorted()
}

// sorted by address.
func (l *Leases) sorted() []Lease {
	return slices.SortedFunc(maps.Values(l.held),
		func(a, b Lease) int { return a.Address.Compare(b.Address) })
}

// save replaces the file, and returns when the new one survives a power cut.
func (l *Leases) save() error {
	data, err := json.MarshalIndent(leaseFile{Next: l.next, Leases: l.sorted()}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the address leases: %w", err)
	}
	if err := ReplaceFile(l.path, append(data, '\n')); err != nil {
		return fmt.Errorf("write the address leases %s: %w", l.path, err)
	}
	return nil
}
