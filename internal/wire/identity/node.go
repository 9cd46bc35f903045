package identity

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// DefaultPort is the TCP port of an agent whose address has no port.
const DefaultPort = 7443

// MaxNumber is the largest node number: node N has the addresses POOL.N.0/24, and 255 is left for broadcasts.
const MaxNumber = 254

const (
	maxNodesFileBytes = 1 << 20
	maxHostBytes      = 253 // RFC 1035, section 2.3.4, without the dots at the ends
)

// A name is one DNS label, because certificates carry it as one (RFC 1123, section 2.1).
var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

var hostPattern = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9_.-]*[a-zA-Z0-9])?$`)

// Node is what nodes know about each other. Each node signs its own entry, so the entry can be passed on by
// any node.
type Node struct {
	Name    string `json:"name"`
	Number  int    `json:"number"`
	Address string `json:"address"` // host:port of its agent
	// Revision grows with each change of the entry, so that the newest entry can be found without trusting
	// clocks.
	Revision uint64 `json:"revision"`
	// Certificate (DER) and Signature, in base64, are empty in an entry that its node has not signed yet: see
	// Entry.
	Certificate string `json:"certificate,omitempty"`
	Signature   string `json:"signature,omitempty"`
}

// Validate returns what is wrong with an entry, for lists from other nodes.
func (n Node) Validate() error {
	if err := CheckName(n.Name); err != nil {
		return err
	}
	if n.Revision > MaxRevision {
		return fmt.Errorf("node %s has the revision %d; the limit is %d", n.Name, n.Revision,
			uint64(MaxRevision))
	}
	if len(n.Certificate) > base64.StdEncoding.EncodedLen(maxEntryCertBytes) ||
		len(n.Signature) > base64.StdEncoding.EncodedLen(maxSignatureBytes) {
		return fmt.Errorf("node %s: certificate of %d and signature of %d bytes are too long", n.Name,
			len(n.Certificate), len(n.Signature))
	}
	if n.Number < 1 || n.Number > MaxNumber {
		return fmt.Errorf("node %s has the number %d; numbers are 1 to %d", n.Name, n.Number, MaxNumber)
	}
	address, err := ParseAddress(n.Address)
	if err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	if address != n.Address {
		return fmt.Errorf("node %s: address %q has no port", n.Name, n.Address)
	}
	return nil
}

// CheckName reports whether a node may have this name.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("%q is not a node name: use 1 to 63 lower-case letters, digits and inner hyphens",
			name)
	}
	return nil
}

// ParseAddress checks HOST or HOST:PORT and returns HOST:PORT. HOST is a name or an address that other nodes
// can reach, so an unspecified address (0.0.0.0) is refused.
func ParseAddress(address string) (string, error) {
	host, port := address, strconv.Itoa(DefaultPort)
	if h, p, err := net.SplitHostPort(address); err == nil {
		host, port = h, p
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 || port[0] == '0' {
		return "", fmt.Errorf("address %q: port %q is not a number from 1 to 65535", address, port)
	}
	if err := checkHost(host); err != nil {
		return "", fmt.Errorf("address %q: %w", address, err)
	}
	return net.JoinHostPort(host, port), nil
}

func checkHost(host string) error {
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.IsUnspecified() || ip.IsMulticast() {
			return errors.New("other nodes cannot reach it; give the address under which they know this " +
				"machine")
		}
		return nil
	}
	if len(host) > maxHostBytes || !hostPattern.MatchString(host) {
		return errors.New("want HOST or HOST:PORT, for example 192.0.2.10:7443")
	}
	return nil
}

// Subnet returns the part of the pool from which a node assigns addresses to containers: the /24 of its
// number.
func Subnet(pool netip.Prefix, number int) (netip.Prefix, error) {
	if err := CheckPool(pool); err != nil {
		return netip.Prefix{}, err
	}
	if number < 1 || number > MaxNumber {
		return netip.Prefix{}, fmt.Errorf("%d is not a node number (1 to %d)", number, MaxNumber)
	}
	bytes := pool.Masked().Addr().As4()
	bytes[2] = byte(number)
	return netip.PrefixFrom(netip.AddrFrom4(bytes), 24), nil
}

// CheckPool reports whether a pool of container addresses can be divided among nodes.
func CheckPool(pool netip.Prefix) error {
	if !pool.IsValid() || !pool.Addr().Is4() || pool.Bits() != 16 {
		return fmt.Errorf("pool %s: want an IPv4 network of 16 bits, for example 10.57.0.0/16", pool)
	}
	return nil
}

// ParseNodes decodes and checks a list of nodes, which may come from another node.
func ParseNodes(data []byte) ([]Node, error) {
	if len(data) > maxNodesFileBytes {
		return nil, fmt.Errorf("list of nodes has %d bytes; the limit is %d", len(data), maxNodesFileBytes)
	}
	var nodes []Node
	if err := json.Unmarshal(data, &nodes); err != nil {
		return nil, fmt.Errorf("decode list of nodes: %w", err)
	}
	if err := validateNodes(nodes); err != nil {
		return nil, err
	}
	return nodes, nil
}

func validateNodes(nodes []Node) error {
	if len(nodes) > MaxNumber {
		return fmt.Errorf("list of nodes has %d entries; the limit is %d", len(nodes), MaxNumber)
	}
	numbers, names := map[int]bool{}, map[string]bool{}
	for _, node := range nodes {
		if err := node.Validate(); err != nil {
			return fmt.Errorf("list of nodes: %w", err)
		}
		if numbers[node.Number] || names[node.Name] {
			return fmt.Errorf("list of nodes: number %d or name %s occurs twice", node.Number, node.Name)
		}
		numbers[node.Number], names[node.Name] = true, true
	}
	return nil
}

// Merge combines what this node knows with what it has heard. The newest entry of each number wins, and if
// two numbers claim one name, the newer number has it; the result does not depend on the order in which
// lists arrive. Merge ignores invalid entries. It reports whether anything is new. The result is in order
// of number.
func Merge(known, heard []Node) (merged []Node, changed bool) {
	best := map[int]Node{}
	for _, node := range slices.Concat(known, heard) {
		if node.Validate() != nil {
			continue
		}
		if old, ok := best[node.Number]; !ok || newer(node, old) {
			best[node.Number] = node
		}
	}
	names := map[string]int{}
	for number, node := range best {
		names[node.Name] = max(names[node.Name], number)
	}
	for number, node := range best {
		if names[node.Name] == number {
			merged = append(merged, node)
		}
	}
	slices.SortFunc(merged, func(a, b Node) int { return a.Number - b.Number })
	return merged, !slices.Equal(merged, known)
}

// newer reports which of two entries wins. A signed entry is newer than an unsigned one. Next counts the
// time of the certificate, which the authority has set, so that a node cannot outbid the next node with its
// number; then the revision, which the node has set; and then the content: any order will do, if all nodes
// use the same.
func newer(a, b Node) bool {
	if a.Certificate != b.Certificate {
		if was, is := b.issued(), a.issued(); !was.Equal(is) {
			return is.After(was)
		}
	}
	if a.Revision != b.Revision {
		return a.Revision > b.Revision
	}
	if a.Address != b.Address {
		return a.Address > b.Address
	}
	if a.Name != b.Name {
		return a.Name > b.Name
	}
	if a.Certificate != b.Certificate {
		return a.Certificate > b.Certificate
	}
	return a.Signature > b.Signature
}

// LoadNodes reads the nodes that this node knows; a node that knows none has an empty list.
func LoadNodes(state string) ([]Node, error) {
	data, err := readFile(nodesPath(state), maxNodesFileBytes)
	if err != nil {
		if isNotExist(err) {
			return nil, nil
		}
		return nil, err
	}
	nodes, err := ParseNodes(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", nodesPath(state), err)
	}
	return nodes, nil
}

// SaveNodes replaces the list of the nodes that this node knows.
func SaveNodes(state string, nodes []Node) error {
	if err := validateNodes(nodes); err != nil {
		return err
	}
	return writeJSON(nodesPath(state), nodes)
}

func nodesPath(state string) string { return filepath.Join(state, "nodes.json") }
