package uplink

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/pinned"
)

// DefaultPort is the TCP port of a controller whose address has no port.
const DefaultPort = 7445

// maxAddresses bounds the controllers of a cluster.
const maxAddresses = 16

// Config says which controllers a node dials.
type Config struct {
	Addresses   []string `json:"addresses"` // HOST:PORT; any of them may lead
	Fingerprint string   `json:"fingerprint"`
	// Joined is when the node joined. A node that joins again obeys the controller anew, such as one whose
	// state was restored from a backup and which therefore counts its terms from an earlier number.
	Joined time.Time `json:"joined"`
}

// controller tells a controller from another one, and from the same one before the node joined it again.
func (c Config) controller() string {
	if c.Joined.IsZero() {
		return c.Fingerprint
	}
	return c.Fingerprint + " " + c.Joined.UTC().Format(time.RFC3339Nano)
}

func configPath(state string) string { return filepath.Join(state, "controller.json") }

// ParseAddresses reads HOST[:PORT], or several separated by commas.
func ParseAddresses(text string) ([]string, error) {
	var all []string
	for one := range strings.SplitSeq(text, ",") {
		one = strings.TrimSpace(one)
		if _, _, err := net.SplitHostPort(one); err != nil {
			host := strings.TrimSuffix(strings.TrimPrefix(one, "["), "]")
			one = net.JoinHostPort(host, strconv.Itoa(DefaultPort))
		}
		address, err := identity.ParseAddress(one)
		if err != nil {
			return nil, fmt.Errorf("controller: %w", err)
		}
		all = append(all, address)
	}
	if len(all) > maxAddresses {
		return nil, fmt.Errorf("%d addresses of controllers; the limit is %d", len(all), maxAddresses)
	}
	return all, nil
}

// Save writes the configuration. The agent reads it within seconds.
func (c Config) Save(state string) error { return durable.Save(configPath(state), c) }

// Forget removes the configuration.
func Forget(state string) error { return durable.Remove(configPath(state)) }

// load reads the configuration. False: there is none, and nothing is to be done.
func load(state string) (Config, pinned.Fingerprint, bool, error) {
	var c Config
	err := durable.Load(configPath(state), &c)
	if errors.Is(err, fs.ErrNotExist) {
		return c, pinned.Fingerprint{}, false, nil
	}
	var fingerprint pinned.Fingerprint
	if err == nil {
		fingerprint, err = pinned.ParseFingerprint(c.Fingerprint)
	}
	if err == nil {
		c.Addresses, err = ParseAddresses(strings.Join(c.Addresses, ","))
	}
	return c, fingerprint, err == nil, err
}
