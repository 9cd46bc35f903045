package torture

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
)

// chooser chooses at random what an operation works on: paths, data, attributes.
type chooser struct {
	Config
	random *rand.Rand
	piece  []byte // data to write, a different part each time
}

func newChooser(config Config) chooser {
	c := chooser{Config: config, random: rand.New(rand.NewPCG(config.Seed, 5)), piece: make([]byte, 1<<20)}
	for i := range c.piece {
		c.piece[i] = byte(c.random.Uint32())
	}
	return c
}

// names returns names in a directory: few, so that all processes meet.
func (c *chooser) names() []string {
	all := []string{"a", "b", "c", "d", "log", "log.1", "not \xff UTF-8", "new\nline", "-rf", ".hidden"}
	if c.Long {
		all = append(all, strings.Repeat("n", 255))
	}
	return all
}

// directory chooses the path of a directory that may exist.
func (c *chooser) directory() string {
	path := c.Dir
	for range c.random.IntN(4) {
		path += "/dir" + string(rune('0'+c.random.IntN(3)))
	}
	return path
}

// file chooses the path of a file that may exist.
func (c *chooser) file() string {
	all := c.names()
	return c.directory() + "/" + all[c.random.IntN(len(all))]
}

// anything chooses the path of a file or directory that may exist.
func (c *chooser) anything() string {
	if c.random.IntN(4) == 0 {
		return c.directory()
	}
	return c.file()
}

// bytes returns data to write: at most most bytes, with a length of any order of magnitude.
func (c *chooser) bytes(most int) []byte {
	length := 1 + c.random.IntN(1<<c.random.IntN(18))
	length = min(length, most)
	from := c.random.IntN(len(c.piece) - length + 1)
	return c.piece[from : from+length]
}

// attribute chooses an extended attribute and a valid value.
func (c *chooser) attribute() (string, []byte) {
	switch c.random.IntN(5) {
	case 0:
		return "system.posix_acl_access", c.accessList()
	case 1:
		return "system.posix_acl_default", c.accessList()
	case 2:
		return "security.capability", capability()
	case 3:
		return fmt.Sprintf("trusted.t%d", c.random.IntN(3)), c.bytes(100)
	default:
		return fmt.Sprintf("user.u%d", c.random.IntN(5)), c.bytes(1000)
	}
}

// accessList returns an ACL in the kernel's format (include/uapi/linux/posix_acl_xattr.h).
func (c *chooser) accessList() []byte {
	list := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, permissions uint16
		id               uint32
	}{
		{0x01, 7, 1<<32 - 1}, {0x02, uint16(c.random.IntN(8)), uint32(c.random.IntN(5))},
		{0x04, uint16(c.random.IntN(8)), 1<<32 - 1},
		{0x10, 7, 1<<32 - 1}, {0x20, uint16(c.random.IntN(8)), 1<<32 - 1},
	} {
		list = binary.LittleEndian.AppendUint16(list, e.tag)
		list = binary.LittleEndian.AppendUint16(list, e.permissions)
		list = binary.LittleEndian.AppendUint32(list, e.id)
	}
	return list
}
