package vet

import (
	core "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/fdinfo"
	ghost_file "github.com/checkpoint-restore/go-criu/v7/crit/images/ghost-file"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/mnt"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/netdev"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/seccomp"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/userns"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// levelsOfMessages is the nesting depth of the messages that Images reads.
const levelsOfMessages = 3

// Prepare makes the first call of Images as fast as later calls. The protobuf library builds the tables of
// a message type when it first meets the type, which takes longer than reading the images of a small
// container; and the container is frozen while Images reads them.
func Prepare() {
	for _, m := range []proto.Message{
		&inventory.InventoryEntry{}, &pstree.PstreeEntry{}, &core.CoreEntry{}, &core.TaskKobjIdsEntry{},
		&fdinfo.FileEntry{}, &ghost_file.GhostFileEntry{}, &mnt.MntEntry{}, &netdev.NetnsEntry{},
		&seccomp.SeccompEntry{}, &userns.UsernsEntry{},
	} {
		fill(m.ProtoReflect(), levelsOfMessages)
		data, err := proto.MarshalOptions{AllowPartial: true}.Marshal(m)
		if err == nil {
			_ = decode(data, m.ProtoReflect().New().Interface()) // for the tables only
		}
	}
}

// fill sets the fields of a message that are messages themselves.
func fill(m protoreflect.Message, levels int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case f.Message() == nil || f.IsMap() || levels == 0:
		case f.IsList():
			fill(m.Mutable(f).List().AppendMutable().Message(), levels-1)
		default:
			fill(m.Mutable(f).Message(), levels-1)
		}
	}
}
