package memory

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// An object is memory that processes share without a file: a shared anonymous mapping, or the result of
// memfd_create(2). Its pages are sent once, whoever has mapped them, at any address. In runs and maps an
// object has a number like a task, above those of all tasks, and addresses are offsets in it.
const (
	// FirstObject is the number of the first object.
	FirstObject = Task(maxTask + 1)
	// MaxObjects bounds how many objects are moved with one container.
	MaxObjects = 1 << 12
	lastTask   = maxTask + MaxObjects

	// descriptionAddress is the address of a page that does not belong to the object, but describes it. So
	// a description comes like all pages, in a separate run.
	descriptionAddress = maxAddress - 1<<16
	maxObjectBytes     = descriptionAddress

	// maxObjectName is the longest name that memfd_create(2) accepts: NAME_MAX minus its own "memfd:".
	maxObjectName = 249

	descriptionMagic = 0x316a624f_6d497764 // "dwImObj1"
	descriptionSize  = 8 + 8 + 8 + 4*4 + 4
)

// IsObject distinguishes the number of an object from that of a process.
func (t Task) IsObject() bool { return t >= FirstObject && t <= lastTask }

// Object describes memory that processes share.
type Object struct {
	Task  Task   // its number in runs and maps
	Inode uint64 // at the source; CRIU's images use it as the name
	Size  uint64 // in bytes
	UID   uint32
	GID   uint32
	Mode  uint32 // permissions
	Seals uint32 // F_GET_SEALS of fcntl(2)
	Name  string // as given to memfd_create(2); empty for a shared anonymous mapping
}

// description returns a page that describes an object: magic u64, inode u64, size u64, uid u32, gid u32,
// mode u32, seals u32, length of the name u32, name; little-endian.
func (o *Object) description() []byte {
	page := make([]byte, PageSize())
	b := binary.LittleEndian.AppendUint64(page[:0], descriptionMagic)
	b = binary.LittleEndian.AppendUint64(b, o.Inode)
	b = binary.LittleEndian.AppendUint64(b, o.Size)
	for _, word := range [...]uint32{o.UID, o.GID, o.Mode, o.Seals, uint32(len(o.Name))} {
		b = binary.LittleEndian.AppendUint32(b, word)
	}
	copy(page[len(b):], o.Name)
	return page
}

// parseDescription parses the result of description.
func parseDescription(task Task, page []byte) (Object, error) {
	if len(page) < descriptionSize+maxObjectName || binary.LittleEndian.Uint64(page) != descriptionMagic {
		return Object{}, fmt.Errorf("%w description of shared memory", ErrMalformed)
	}
	o := Object{
		Task: task, Inode: binary.LittleEndian.Uint64(page[8:]), Size: binary.LittleEndian.Uint64(page[16:]),
		UID: binary.LittleEndian.Uint32(page[24:]), GID: binary.LittleEndian.Uint32(page[28:]),
		Mode: binary.LittleEndian.Uint32(page[32:]), Seals: binary.LittleEndian.Uint32(page[36:]),
	}
	length := binary.LittleEndian.Uint32(page[40:])
	if o.Inode == 0 || o.Size > maxObjectBytes || o.Mode&^0o7777 != 0 || length > maxObjectName {
		return Object{},
			fmt.Errorf("%w description of shared memory: inode %d, %d bytes, mode %#o, name of %d bytes",
				ErrMalformed, o.Inode, o.Size, o.Mode, length)
	}
	name := page[descriptionSize : descriptionSize+length]
	if bytes.IndexByte(name, 0) >= 0 {
		return Object{}, fmt.Errorf("%w description of shared memory: name %q", ErrMalformed, name)
	}
	o.Name = string(name)
	return o, nil
}
