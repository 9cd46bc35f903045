package uplink

import (
	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/api"
)

// partBytes is the size of a message to the controller, which takes 256 KiB. No container has as much as the
// rest.
const partBytes = 128 << 10

// stateParts makes messages of the whole state of a node: the first has the state, the others changes of it.
func stateParts(s *api.NodeState) []*api.Up {
	split := deltaParts(&api.Delta{Containers: s.Containers, Links: s.Links})
	first := &api.NodeState{Version: s.Version, Address: s.Address, FreeBytes: s.FreeBytes}
	first.Containers, first.Links, first.More = split[0].Containers, split[0].Links, len(split) > 1
	parts := []*api.Up{{State: first}}
	for i, one := range split[1:] {
		one.More = i+2 < len(split)
		parts = append(parts, &api.Up{Delta: one})
	}
	return parts
}

// deltaParts makes changes of up to partBytes of a change. There is one at least.
func deltaParts(d *api.Delta) []*api.Delta {
	last, size := &api.Delta{FreeBytes: d.FreeBytes}, 0
	parts := []*api.Delta{last}
	room := func(bytes int) *api.Delta {
		if size+bytes > partBytes && size > 0 {
			last, size = &api.Delta{FreeBytes: d.FreeBytes}, 0
			parts = append(parts, last)
		}
		size += bytes
		return last
	}
	const each = 8 // of bytes around an element, at most
	for _, id := range d.Gone {
		part := room(len(id) + each)
		part.Gone = append(part.Gone, id)
	}
	for _, one := range d.Containers {
		part := room(proto.Size(one) + each)
		part.Containers = append(part.Containers, one)
	}
	for _, one := range d.Links {
		part := room(proto.Size(one) + each)
		part.Links = append(part.Links, one)
	}
	return parts
}
